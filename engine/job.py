"""One job's run, from its last commit to its end, driven by events alone: it awaits its own rollouts, rewards and steps
and nobody else's.

Invariants: a step is committed by the trainer before it is reported, and reported once; a run that is stopped at any
instant (pause, cancel, crash) goes on from the last commit, with no step lost or repeated; whatever goes wrong ends
this job with a reason in plain words and no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from engine.actors import LostActor
from engine.batches import batch_metrics, describe_silence, finite, published_event, rollout_events, step_spans
from engine.best_version import EvaluationHistory
from engine.collector import Collector, DrawnBatch
from engine.config import EngineConfig
from engine.doctor import Doctor
from engine.drain import held, paused_on_request
from engine.evaluation import Evaluations
from engine.events import AdapterRemoved, JobStatus, Notice, Payload, Span, StatusChanged, StepCommitted
from engine.failures import REASONED, JobFailed
from engine.ledger import Ledger
from engine.logs import job_id
from engine.pool import Pool
from engine.progress import Progress
from engine.prompts import load_prompts
from engine.result import choose_result, versions_to_keep
from engine.reward_errors import Judged, RewardErrors, describe_loss, judge
from engine.rollout.workers import PublishError
from engine.spec import BaseModelSpec, JobControl, JobSpec
from engine.store import last_commit, prune, read_manifest
from engine.types import BASE, PROBE_TOKENS, AdapterRef, Commit, StepResult, TrainBatch

log = logging.getLogger(__name__)


class JobRun:
    """Runs one job until it ends or is paused. ``run`` never raises but on cancellation by a stopping controller."""

    def __init__(
        self,
        spec: JobSpec,
        progress: Progress,
        control: JobControl | None,
        ledger: Ledger,
        config: EngineConfig,
        pool_of: Callable[[BaseModelSpec], Awaitable[Pool]],
        wake: Callable[[], None],
    ) -> None:
        self.spec = spec
        self._progress = progress
        self._control = control
        self._ledger = ledger
        self._pool_of = pool_of
        self._wake = wake
        self._job_dir = str(config.job_dir(spec.job_id))
        self._task: asyncio.Task[Any] | None = None
        self._pool: Pool | None = None
        self._collector: Collector | None = None
        self._evaluations: Evaluations | None = None
        self._commit: Commit | None = None
        self._policy: AdapterRef | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._silent_batches = 0
        self._doctor = Doctor(spec)
        self._doctor.restore(progress.doctor)
        self._errors = RewardErrors(spec)
        self._errors.restore(progress.reward_errors)
        self._stopping = False
        self._held = ""
        self._ran_before = progress.ran_seconds
        self._started = time.monotonic()
        self._set_steps()

    # --- control ---

    def apply(self, control: JobControl) -> None:
        """Go by the tenant's wishes from now on."""
        self._control = control
        self._set_steps()
        if self._pool is not None:
            self._pool.register(self.spec, control.priority)
        self._obey()

    def hold(self, reason: str) -> None:
        """The operator drains the engine: pause, whatever the tenant wants. Empty: the drain is over."""
        self._held = reason
        self._obey()

    def _obey(self) -> None:
        if self._is_stopped() and self._task is not None and not self._stopping:
            self._task.cancel()

    def _is_stopped(self) -> bool:
        return bool(self._held) or self._is_unwanted()

    def _is_unwanted(self) -> bool:
        return self._control is not None and (self._control.cancelled or self._control.paused)

    def _set_steps(self) -> None:
        if self._control is not None and self._control.steps is not None:
            steps = max(self._control.steps, self._progress.step, 1)
            training = self.spec.training.model_copy(update={"steps": steps})
            self.spec = self.spec.model_copy(update={"training": training})

    # --- reporting ---

    def _report(self, *payloads: Payload) -> None:
        self._progress.ran_seconds = self._ran_before + time.monotonic() - self._started
        self._ledger.report(self.spec.job_id, *payloads, progress=self._progress)
        self._wake()

    def _status(self, status: JobStatus, reason: str, following: str = "") -> None:
        self._report(StatusChanged(status=status, reason=reason, next=following))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- life ---

    async def run(self) -> None:
        """Bring the job to its end, or to a pause, and report it."""
        self._task = asyncio.current_task()
        job_id.set(self.spec.job_id)
        try:
            if self._is_stopped():
                raise asyncio.CancelledError
            async with asyncio.timeout(max(0.0, self.spec.limits.max_wall_seconds - self._ran_before)):
                await self._train_all()
        except TimeoutError:
            await self._settle()
            self._finish_early(f"The limit of {self.spec.limits.max_wall_seconds} s of wall-clock time is reached")
        except asyncio.CancelledError:
            if not self._is_stopped():
                raise  # the controller stops, or the tenant wants it to run again: from the last commit
            await self._settle()
            self._stop()
        except REASONED as error:
            await self._settle()
            self._end("failed", str(error), getattr(error, "advice", ""))
        except Exception as error:
            log.exception("job %s failed", self.spec.job_id)
            await self._settle()
            self._end("failed", f"The engine failed: {type(error).__name__}: {error}")
        finally:
            await self._release()

    async def _settle(self) -> None:
        """Before an early end: drop what is being drawn, let a commit that was begun be written, and report it."""
        self._stopping = True
        self._drop_drawing()
        try:
            if self._pool is not None:
                await self._pool.close_job(self.spec)
            commit = await asyncio.to_thread(last_commit, self._job_dir)
        except REASONED as error:
            log.warning("job %s: its last commit cannot be read: %s", self.spec.job_id, error)
            return
        if commit is not None:
            self._commit = commit
            self._catch_up(commit)

    def _stop(self) -> None:
        """The tenant cancelled or paused the job, or the engine is drained. What was being drawn is dropped; what was
        committed stays."""
        step, steps = self._progress.step, self.spec.training.steps
        if self._control is not None and self._control.cancelled:
            self._end("cancelled", "Cancelled on request.")
        elif self._is_unwanted():
            why = self._control.reason if self._control is not None else ""
            self._report(paused_on_request(step, steps, why))
        elif self._held:  # else whoever stopped it changed their mind, and the controller runs it again
            self._report(held(self._held, step, steps))

    def _finish_early(self, why: str) -> None:
        """End before all steps are made, keeping what was learnt; without any step the job failed."""
        step = self._commit.step if self._commit else 0
        if step == 0:
            self._end("failed", f"{why} before the first step was committed.")
        else:
            self._end("succeeded", f"{why}; stopped after step {step} of {self.spec.training.steps}.")

    def _end(self, status: JobStatus, reason: str, following: str = "") -> None:
        """Report the end and, where a step was committed, which version is the job's result."""
        if self._commit is None or self._commit.step == 0:
            nothing = following or "No step was committed, so there is no adapter."
            self._report(StatusChanged(status=status, reason=reason, next=nothing))
            return
        evaluations = EvaluationHistory(self.spec.evaluation)
        evaluations.restore(self._progress.history)
        result = choose_result(self.spec, evaluations, self._commit, self._job_dir)
        self._report(
            published_event(result.commit, final=True),
            *result.notices,
            StatusChanged(status=status, reason=reason + result.why, next=following or result.kept),
        )

    async def _release(self) -> None:
        """Give up everything held in rollout and trainer."""
        self._drop_drawing()
        if self._pool is None:
            return
        try:
            if self._policy is not None:
                await self._pool.retire(self._policy)
            await self._pool.close_job(self.spec)
        except (LostActor, asyncio.CancelledError):
            log.warning("job %s: its memory goes with the actor that held it", self.spec.job_id)

    def _drop_drawing(self) -> None:
        if self._collector is not None:
            self._collector.cancel()
        if self._evaluations is not None:
            self._evaluations.cancel()

    # --- the run ---

    async def _train_all(self) -> None:
        await self._prepare()
        assert self._commit and self._policy and self._collector and self._evaluations
        early = ""
        while not early:
            if self._commit.step >= self.spec.training.steps:
                await self._evaluate_last()
                if self._commit.step >= self.spec.training.steps:  # not extended meanwhile
                    break
            batch = await self._collector.next(self._policy, self.spec.training.steps - self._commit.step)
            early = (
                await self._train_on(batch) or self._progress.reached(self.spec.limits) or self._evaluations.should_stop
            )
            every = self.spec.evaluation.every_steps
            if every and self._commit.step % every == 0 and self._commit.step > 0:
                self._evaluations.start(self._policy, self._commit.step)
        await self._evaluate_last()
        if early and self._commit.step < self.spec.training.steps:
            self._finish_early(early)
        else:
            self._end("succeeded", f"All {self.spec.training.steps} steps are committed.", "Download the adapter.")

    async def _evaluate_last(self) -> None:
        """Wait for the evaluations, the last version's among them."""
        assert self._commit and self._policy and self._evaluations
        if self._commit.step > 0:
            self._evaluations.start(self._policy, self._commit.step)
        await self._evaluations.finished()

    async def _prepare(self) -> None:
        """Get pool, dataset and adapter ready, from the last commit on."""
        spec, start = self.spec, time.time()
        self._status(
            "preparing", f"Starting base model {spec.base_model.id} and checking the dataset.", "Rollouts begin."
        )
        pool = self._pool = await self._pool_of(spec.base_model)
        pool.register(spec, self._control.priority if self._control else 0)
        prompts = await asyncio.to_thread(load_prompts, spec, pool.model_dir)
        self._commit = await pool.open_job(spec)
        self._policy, _ = await pool.publish(self._commit, [], [])
        self._report(Span(stage="prepare", worker="controller", start=start, end=time.time()))
        self._catch_up(self._commit)
        self._collector = Collector(spec, pool, prompts, self._commit.cursor)
        self._evaluations = Evaluations(spec, pool, prompts, self._progress, self._doctor, self._errors, self._report)
        self._evaluations.start(BASE, 0)
        committed = self._commit.step
        self._status("running", f"Training, taken up again after step {committed}." if committed else "Training.")

    async def _train_on(self, drawn: DrawnBatch) -> str:
        """Make a step of a batch, or drop it where it teaches nothing. Why the job is over, if it is."""
        assert self._commit and self._policy and self._collector
        step = self._commit.step + 1
        errors = self._errors.observe_batch(step, drawn.cursor, drawn.groups)
        self._progress.reward_errors = self._errors.state()
        if errors:
            self._report(*errors)
        judged = judge(self.spec, drawn.groups)
        if too_many := self._errors.too_many:
            self._report(*rollout_events(step, drawn.groups, judged.shown), *drawn.spans)
            raise JobFailed(too_many, "Look at the errors shown, mend the reward or its environment, and start again.")
        if not judged.has_signal:
            return self._silent_batch(drawn, judged)
        self._silent_batches = 0
        self._collector.draw_ahead(self._policy, 0, self.spec.training.steps - self._commit.step)
        await self._step(drawn, judged)
        return ""

    async def _step(self, drawn: DrawnBatch, judged: Judged) -> None:
        """One optimizer step: train, commit (in the trainer), publish, report."""
        pool, previous, commit = self._pool, self._policy, self._commit
        assert pool and previous and commit
        first = judged.groups[0]
        batch = TrainBatch(
            job_id=self.spec.job_id,
            step=commit.step + 1,
            cursor=drawn.cursor,
            groups=judged.groups,
            advantages=judged.advantages,
            probe_ids=(first.trajectories[0].token_ids + first.prompt_ids)[:PROBE_TOKENS],
            metrics={
                **batch_metrics(self.spec, drawn.groups),
                **{f"{stage}_seconds": seconds for stage, seconds in drawn.seconds.items()},
            },
        )
        queued = time.time()
        result = await pool.train(self.spec, batch)
        trained = time.time() - result.commit_seconds
        if result.commit.sha256 == commit.sha256:
            raise PublishError(f"step {batch.step} left the adapter unchanged")
        self._commit = result.commit
        self._policy, probe_gap = await pool.publish(result.commit, batch.probe_ids, result.probe_logprobs)
        self._report_step(drawn, judged, result, queued, trained, probe_gap)
        self._in_background(pool.retire(previous))  # it waits for requests in flight, evaluations among them
        self._prune()

    def _report_step(
        self, drawn: DrawnBatch, judged: Judged, result: StepResult, queued: float, trained: float, probe_gap: float
    ) -> None:
        assert self._pool
        published = time.time()
        accelerator_seconds = result.metrics["train_seconds"] + self._pool.rollout_seconds(self.spec.job_id)
        step = result.commit.step
        self._progress.count(result.commit, result.metrics, accelerator_seconds)
        metrics = {
            **finite(result.metrics),
            "accelerator_seconds": accelerator_seconds,
            "commit_seconds": result.commit_seconds,
            "publish_seconds": published - trained,
            "probe_gap": probe_gap,
        }
        notices = self._doctor.observe_step(step, metrics, drawn.groups)
        self._progress.doctor = self._doctor.state()
        self._report(
            StepCommitted(step=step, adapter_version=result.commit.version, metrics=metrics),
            published_event(result.commit),
            *notices,
            *rollout_events(step, drawn.groups, judged.shown),
            *drawn.spans,
            *step_spans(result, queued, trained, published),
        )

    def _silent_batch(self, drawn: DrawnBatch, judged: Judged) -> str:
        """A batch without learning signal: show it, count it. Where the job ends because of it: why."""
        assert self._commit
        self._silent_batches += 1
        allowed = self.spec.limits.max_batches_without_signal
        reason = describe_silence(judged.groups, self._silent_batches) if judged.groups else describe_loss(drawn.groups)
        step = self._commit.step + 1
        notices = self._doctor.observe_step(step, batch_metrics(self.spec, drawn.groups), drawn.groups)
        self._progress.doctor = self._doctor.state()
        self._report(
            Notice(
                level="warning",
                code="batch_dropped",
                message=reason,
                hint="Drawing other prompts instead. "
                f"After {allowed} such batches in a row the job ends; this was number {self._silent_batches}.",
            ),
            *notices,
            *rollout_events(step, drawn.groups, judged.shown),
            *drawn.spans,
        )
        if self._silent_batches < allowed:
            return ""
        if self._commit.step == 0:
            raise JobFailed(
                f"{reason} There is nothing to learn from.",
                "Test the reward on the completions shown, make the task easier or give partial credit with a "
                "weighted mix, then start a new job.",
            )
        return reason.rstrip(".")

    # --- versions ---

    def _catch_up(self, commit: Commit) -> None:
        """Report a commit whose report was lost with the controller that made it."""
        if commit.version > self._progress.published:
            payloads: list[Payload] = [published_event(commit)]
            metrics = finite(read_manifest(self._job_dir, commit.version).metrics)
            if commit.step > self._progress.step:
                payloads.insert(0, StepCommitted(step=commit.step, adapter_version=commit.version, metrics=metrics))
                payloads += self._doctor.observe_step(commit.step, metrics, [])
                self._progress.doctor = self._doctor.state()
            self._progress.count(commit, metrics, metrics.get("train_seconds", 0.0))
            self._report(*payloads)

    def _prune(self) -> None:
        assert self._commit and self._evaluations
        needed = self._evaluations.needed_versions
        started_from = self._ledger.versions_started_from(self.spec.job_id)
        keep = versions_to_keep(self.spec, self._commit.version, needed, started_from)
        removed = prune(self._job_dir, keep=keep)
        if removed:
            self._report(AdapterRemoved(adapter_versions=removed))
