"""The controller: one Ray actor that owns every job's state machine, the pools, and the outbox of events.

Invariants: every job in the ledger that has not ended has exactly one running coroutine here; a controller that starts
resumes them all from their last commits; no two controllers work in one folder; commands are idempotent; a waiting job
costs a coroutine and nothing else.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import time
from functools import partial
from pathlib import Path
from typing import IO, Any

import ray
from pydantic import ValidationError

from engine.actors import RestartingActor
from engine.config import EngineConfig
from engine.drain import accepted_while_drained, drain_reason, held, paused_on_request, trial_refusal
from engine.events import ControlApplied, Payload, StatusChanged
from engine.job import JobRun
from engine.ledger import JobRecord, Ledger
from engine.logs import configure_logging
from engine.pool import Pool, PoolError, RayRollout, beside_me
from engine.progress import Progress
from engine.spec import (
    BaseModelSpec,
    DrainControl,
    EngineReport,
    JobControl,
    JobSpec,
    PoolControl,
    PoolState,
    RewardSpec,
)
from engine.spec.trial import TrialReport
from engine.trial import BaseModelAtHand, TrialGrader, Trials
from engine.types import Completion, RolloutRequest, Sample, Score

log = logging.getLogger(__name__)

NAME = "controller"
NAMESPACE = "marlaas"
RELAUNCH_SECONDS = 5.0
"""Pause before a job whose run broke off, as where the disk is full, is taken up again."""


class Controller:
    """See the module's docstring. All methods are coroutines of one event loop."""

    def __init__(self, config: EngineConfig) -> None:
        configure_logging()
        self._config = config
        self._alone = hold_alone(config.root)
        self._ledger = Ledger(config.root / "ledger.sqlite3")
        self._pools: dict[str, asyncio.Task[Pool]] = {}
        self._models: dict[str, BaseModelSpec] = {}
        self._jobs: dict[str, tuple[JobRun, asyncio.Task[None]]] = {}
        self._trials = Trials(self._pool, self._score_trial)
        self._trial_grader = RestartingActor("trial grader", self._create_trial_grader)
        self._resumed = False
        self._news = asyncio.Event()
        self._started = time.time()

    def _resume(self) -> None:
        """Start the coroutine of every unfinished job. Every method calls it first: Ray may restart the actor."""
        if self._resumed:
            return
        self._resumed = True
        for record in self._ledger.unfinished_jobs():
            if self._is_to_run(record):
                log.info("resuming job %s", record.job_id)
                self._launch(record.spec, record.progress, record.control)

    def _launch(self, spec: JobSpec, progress: Progress, control: JobControl | None = None) -> None:
        run = JobRun(spec, progress, control, self._ledger, self._config, self._pool, self._news.set)
        task = asyncio.get_running_loop().create_task(run.run(), name=f"job {spec.job_id}")
        self._jobs[spec.job_id] = (run, task)
        task.add_done_callback(lambda _: self._ended(spec.job_id, task))

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        """A run is over. Where the job is not, or the tenant changed their mind while it was stopping, run it again."""
        self._jobs.pop(job_id, None)
        record = self._ledger.job(job_id)
        if record is None or not self._is_to_run(record):
            return
        broken = not task.cancelled() and task.exception() is not None
        if broken:
            log.error("the run of job %s broke off", job_id, exc_info=task.exception())
        asyncio.get_running_loop().call_later(RELAUNCH_SECONDS if broken else 0, self._take_up, job_id)

    def _take_up(self, job_id: str) -> None:
        record = self._ledger.job(job_id)
        if record is not None and job_id not in self._jobs and self._is_to_run(record):
            self._launch(record.spec, record.progress, record.control)

    def _drained(self) -> str:
        """Why no work is taken; empty where it is."""
        return drain_reason(self._ledger.drain_control())

    def _is_to_run(self, record: JobRecord) -> bool:
        """Whether a job needs a coroutine now: in a drained engine only to be ended."""
        return is_to_run(record) and (not self._drained() or (record.control is not None and record.control.cancelled))

    # --- commands ---

    async def submit(self, job_id: str, spec: dict[str, Any]) -> None:
        """Take on a job; a known job id is ignored. An invalid spec ends the job with its reason."""
        self._resume()
        try:
            parsed = JobSpec.model_validate(spec)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            self._ledger.add_job(
                job_id, spec, StatusChanged(status="failed", reason=f"Invalid job: {where}: {first['msg']}")
            )
        else:
            drained = self._drained()
            accepted = StatusChanged(status="queued", reason="The engine has taken on the job.", next="It starts now.")
            first_word = accepted_while_drained(drained) if drained else accepted
            if self._ledger.add_job(job_id, spec, first_word) and not drained:
                self._launch(parsed, Progress())
        self._news.set()

    async def control(self, job_id: str, control: dict[str, Any]) -> None:
        """Go by the tenant's latest wishes. Unknown and ended jobs are left alone: the portal sends again or stops."""
        self._resume()
        wanted = JobControl.model_validate(control)
        record = self._ledger.job(job_id)
        if record is None or (record.control is not None and record.control.revision >= wanted.revision):
            return
        steps = max(wanted.steps or record.spec.training.steps, record.progress.step)
        applied = ControlApplied(revision=wanted.revision, priority=wanted.priority, steps=steps)
        # Stored first: a restart must not forget the wish.
        said: list[Payload] = [applied]
        if record.status == "paused" and not wanted.cancelled and (drained := self._drained()):
            step = record.progress.step  # it does not run, so nobody else says why it stays paused
            said.append(paused_on_request(step, steps) if wanted.paused else held(drained, step, steps))
        self._ledger.report(job_id, *said, control=wanted)
        self._news.set()
        if job_id in self._jobs:
            run, _ = self._jobs[job_id]
            run.apply(wanted)
        else:
            self._take_up(job_id)

    async def scale(self, base_model_id: str, control: dict[str, Any]) -> None:
        """Have as many rollout workers for a base model as the operator's latest wish says, now and after restarts."""
        self._resume()
        wanted = PoolControl.model_validate(control)
        if self._ledger.store_pool_control(base_model_id, wanted):
            task = self._pools.get(base_model_id)
            if task is not None and task.done() and not task.cancelled() and not task.exception():
                task.result().scale(wanted.rollout_workers)

    async def drain(self, control: dict[str, Any]) -> None:
        """Take no work, or take it again, as the operator's latest wish says, now and after restarts."""
        self._resume()
        wanted = DrainControl.model_validate(control)
        if not self._ledger.store_drain_control(wanted):
            return
        reason = drain_reason(wanted)
        log.info("the engine is drained: %s" if reason else "the engine takes work%s", reason)
        for run, _ in self._jobs.values():
            run.hold(reason)
        if not reason:
            for record in self._ledger.unfinished_jobs():
                self._take_up(record.job_id)

    # --- events ---

    async def next_events(self, after: int, limit: int, timeout: float) -> tuple[int, list[str]]:
        """Unacknowledged events (``Event`` as JSON) after outbox id ``after``, as soon as there are any; none after
        ``timeout`` seconds."""
        self._resume()
        last, events = self._ledger.pending(after, limit)
        if not events:
            self._news.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                return after, events
            last, events = self._ledger.pending(after, limit)
        return last, events

    async def oldest_pending(self) -> int | None:
        """Outbox id of the oldest event the portal has not acknowledged."""
        return self._ledger.oldest_pending()

    async def acknowledge(self, acknowledged: dict[str, int]) -> None:
        self._ledger.acknowledge(acknowledged)

    # --- reward trials ---

    async def try_reward(self, trial_id: str, spec: dict[str, Any]) -> None:
        """Run a reward trial (``RewardTrialSpec`` as JSON); a known one reports once more."""
        self._resume()
        self._trials.start(trial_id, spec, trial_refusal(self._drained()))

    async def cancel_trial(self, trial_id: str) -> None:
        self._trials.cancel(trial_id)

    async def next_trial_reports(self, after: int, timeout: float) -> tuple[int, list[TrialReport]]:
        """What trials have reported after sequence number ``after``; see ``Trials.next_reports``."""
        self._resume()
        return await self._trials.next_reports(after, timeout)

    async def _score_trial(
        self, reward: RewardSpec, samples: list[Sample], tenant: str, owner: str, model: BaseModelAtHand | None
    ) -> list[Score]:
        scores: list[Score] = await self._trial_grader.call("score", reward, samples, tenant, owner, model)
        return scores

    def _create_trial_grader(self) -> ray.actor.ActorHandle:
        actor: Any = ray.remote(TrialGrader).options(num_cpus=0, max_concurrency=1000, scheduling_strategy=beside_me())
        this = ray.get_runtime_context().current_actor
        handle: ray.actor.ActorHandle = actor.remote(self._config.grader_workers, partial(RayRollout, this))
        return handle

    # --- pools ---

    async def _pool(self, model: BaseModelSpec) -> Pool:
        """The running pool of a base model, started by whoever needs it first; a failed start is tried anew."""
        task = self._pools.get(model.id)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.get_running_loop().create_task(self._start_pool(model), name=f"pool {model.id}")
            self._pools[model.id], self._models[model.id] = task, model
        elif self._models[model.id] != model:
            raise PoolError(
                f"base model {model.id} is being served with other settings; restart the engine to apply the new ones"
            )
        return await asyncio.shield(task)

    async def _start_pool(self, model: BaseModelSpec) -> Pool:
        this = ray.get_runtime_context().current_actor
        pool = Pool(model, self._config, this, self._ledger.next_lora_id)
        await pool.start(self._rollout_workers(model.id))
        pool.scale(self._rollout_workers(model.id))  # the wish may have changed meanwhile
        return pool

    def _rollout_workers(self, base_model_id: str) -> int:
        control = self._ledger.pool_control(base_model_id)
        return control.rollout_workers if control else self._config.rollout_workers

    async def rollout(self, pool_id: str, request: RolloutRequest) -> list[Completion]:
        """Draw completions; called by environment workers."""
        self._resume()
        task = self._pools.get(pool_id)
        if task is None:
            raise LookupError(f"no pool {pool_id!r} is running")
        pool = await asyncio.shield(task)
        return await pool.generate(request)

    async def health(self) -> dict[str, Any]:
        """Running jobs and pools, for a person."""
        self._resume()
        return {
            "jobs": sorted(self._jobs),
            "pools": {model_id: self._pool_health(model_id, task) for model_id, task in self._pools.items()},
        }

    def _pool_health(self, model_id: str, task: asyncio.Task[Pool]) -> dict[str, Any]:
        wanted = {"wanted_rollout_workers": self._rollout_workers(model_id)}
        if not task.done():
            return {"status": "starting", **wanted}
        if task.cancelled() or task.exception():
            return {"status": "failed", **wanted}
        return {"status": "running", **wanted, **task.result().describe()}

    async def report(self) -> EngineReport:
        """How the engine is, for the operator; what only the bridge knows is left out."""
        self._resume()
        return EngineReport(
            time=time.time(),
            started=self._started,
            jobs=self._ledger.count_unfinished(),
            trials=self._trials.running,
            unacknowledged_events=self._ledger.count_pending(),
            drain=self._ledger.drain_control(),
            pool_revisions=self._ledger.pool_revisions(),
            pools=[self._pool_state(model_id, task) for model_id, task in self._pools.items()],
        )

    def _pool_state(self, model_id: str, task: asyncio.Task[Pool]) -> PoolState:
        health = self._pool_health(model_id, task)
        failed = health["status"] == "failed" and not task.cancelled()
        trouble = str(task.exception()) if failed else ""
        return PoolState.model_validate(
            {"base_model": model_id, "state": health.pop("status"), "trouble": trouble, **health}
        )


def hold_alone(root: Path) -> IO[str]:
    """Wait until no other controller works in this folder; none does while the returned file is open.

    A controller that Ray has lost sight of, as when its head died, may live some seconds longer.
    """
    root.mkdir(parents=True, exist_ok=True)
    file = (root / "controller.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def is_to_run(record: JobRecord) -> bool:
    """Whether a job that has not ended needs a coroutine: not where it is paused and is to stay so."""
    wishes = record.control
    return record.status != "paused" or wishes is None or wishes.cancelled or not wishes.paused


def connect(config: EngineConfig) -> ray.actor.ActorHandle:
    """The running controller, started, on the caller's node, where there is none. It outlives its caller, its own
    crashes, and that node where the cluster has another one."""
    actor: Any = ray.remote(Controller).options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        scheduling_strategy=beside_me(),
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=100_000,
    )
    handle: ray.actor.ActorHandle = actor.remote(config)
    return handle
