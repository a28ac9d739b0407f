"""A pool: what serves one base model. Rollout workers, an environment worker, and one trainer behind its lane.

Invariant: the trainer works on one turn of its lane at a time. What holds of the rollout workers is in
``engine.rollout.workers``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.actors import RestartingActor, StartFailed, call_actor
from engine.config import EngineConfig
from engine.data import DatasetRow
from engine.environments.worker import EnvironmentWorker, GroupResult
from engine.models import prepare
from engine.rollout.worker import RolloutWorker
from engine.rollout.workers import Published, RolloutWorkers
from engine.scheduling.admission import Admission
from engine.scheduling.lane import Lane
from engine.spec import BaseModelSpec, JobSpec
from engine.store import version_folder
from engine.training.errors import TrainingError, UpdateLost
from engine.training.packing import count_row_tokens
from engine.training.trainer import Trainer
from engine.types import AdapterRef, Commit, Completion, Policy, RolloutRequest, StepResult, TrainBatch

log = logging.getLogger(__name__)

COMMITS = "commits"
"""Ray's concurrency group of ``Trainer.commit``, which runs beside the updates."""
TURN_BUDGETS = 2
"""Small batches share a turn of the trainer up to so many of its token budgets: then they divide well between threads.
"""
COMMITTING = 4
"""Commits written at once."""
CONCURRENCY = 10_000
"""Calls in flight in an async actor; each costs a coroutine, no thread."""


class PoolError(RuntimeError):
    """The pool cannot serve the job; the message is for the operator."""


@dataclass(frozen=True)
class JobShare:
    """Whose a job is and how it stands among others."""

    tenant_id: str
    weight: float
    priority: int


UNKNOWN_JOB = JobShare("", 1.0, 0)


class RayRollout:
    """What an environment worker calls to have completions drawn: the controller, which picks a rollout worker."""

    def __init__(self, controller: ActorHandle, pool_id: str) -> None:
        self._controller = controller
        self._pool_id = pool_id

    async def __call__(self, request: RolloutRequest) -> list[Completion]:
        completions: list[Completion] = await call_actor(self._controller, "rollout", self._pool_id, request)
        return completions


class Pool:
    """See the module's docstring. ``start`` must have returned before anything else is called."""

    def __init__(
        self, model: BaseModelSpec, config: EngineConfig, controller: ActorHandle, next_lora_id: Callable[[], int]
    ) -> None:
        self.model = model
        self.model_dir = ""
        self.lane = Lane(capacity=TURN_BUDGETS * config.trainer_token_budget)
        self._config = config
        self._controller = controller
        self._next_lora_id = next_lora_id
        self._opened: dict[
            str, tuple[int, int]
        ] = {}  # job -> generation of the trainer that has it open, and its steps
        self._jobs: dict[str, JobShare] = {}
        self.admission = Admission(0)  # no budget before the workers say how much they have
        self._rollout = RolloutWorkers(self._create_rollout, config.probe_tolerance, self.admission.resize)
        self._environment: RestartingActor
        self._trainer: RestartingActor

    async def start(self, rollout_workers: int) -> None:
        """Prepare the model and start every actor. Raises BaseModelError or what an actor's start raises."""
        prepare_remotely = ray.remote(prepare).options(num_cpus=0)
        try:
            self.model_dir = str(await prepare_remotely.remote(self.model, self._config.models))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        self._environment = RestartingActor("environment worker", self._create_environment)
        self._trainer = RestartingActor("trainer", self._create_trainer)
        try:
            await asyncio.gather(self._rollout.start(rollout_workers), self._environment.start(), self._trainer.start())
        except BaseException as error:
            self.stop()
            if isinstance(error, StartFailed):
                raise PoolError(f"Base model {self.model.id} cannot be served: {error}") from error
            raise

    def scale(self, rollout_workers: int) -> None:
        """Have so many rollout workers from now on; those that are to end finish what they have begun."""
        self._rollout.scale(rollout_workers)

    def describe(self) -> dict[str, Any]:
        """For a person: fields of ``engine.spec.PoolState`` as JSON."""
        return {
            "rollout_workers": self._rollout.describe(),
            "waiting_for_rollout": self.admission.depth,
            "waiting_for_trainer": self.lane.depth,
            "lane_busy": self.lane.busy,
            "kv_budget_tokens": int(self.admission.budget),
            "kv_granted_tokens": int(self.admission.granted),
            "adapters": self._rollout.published,
            "adapter_slots": self._config.adapter_slots,
            "rollout_shares": [share.model_dump() for share in self.admission.describe()],
            "trainer_shares": [share.model_dump() for share in self.lane.describe()],
        }

    def register(self, spec: JobSpec, priority: int) -> None:
        """Make a job's share known, or changed, to rollout and trainer."""
        self._jobs[spec.job_id] = JobShare(spec.tenant_id, spec.weight, priority)

    def register_share(self, owner: str, tenant_id: str, weight: float) -> None:
        """Let something that is no job, as a reward trial, draw completions under its tenant's share."""
        self._jobs[owner] = JobShare(tenant_id, weight, 0)

    def forget_share(self, owner: str, tenant_id: str) -> float:
        """Undo ``register_share``. Returns the rollout workers' seconds spent on it."""
        self._jobs.pop(owner, None)
        self.admission.forget(tenant_id, owner)
        return self.rollout_seconds(owner)

    def _options(self, gpus: float, resources: dict[str, float]) -> dict[str, Any]:
        # num_cpus=0: Ray does not schedule our actors by cores; OpenMP would otherwise be set to one thread.
        # Passive waits: rollout and trainer share the cores, and threads that spin at a barrier would slow each other
        # down tenfold.
        env_vars = {"OMP_NUM_THREADS": str(self._config.threads), "OMP_WAIT_POLICY": "passive"}
        options: dict[str, Any] = {"num_cpus": 0, "resources": resources, "runtime_env": {"env_vars": env_vars}}
        if self._config.device == "cuda":
            options["num_gpus"] = gpus
        return options

    def _create_rollout(self) -> ActorHandle:
        config, model = self._config, self.model
        actor: Any = ray.remote(RolloutWorker).options(
            max_concurrency=CONCURRENCY,
            scheduling_strategy="SPREAD",
            **self._options(config.rollout_gpus, config.rollout_resources),
        )
        handle: ActorHandle = actor.remote(
            self.model_dir,
            dtype=model.dtype,
            max_model_len=model.context_length,
            max_loras=config.adapter_slots,
            max_lora_rank=model.max_lora_rank,
            max_num_seqs=config.max_sequences,
            kv_cache_gib=config.kv_cache_gib,
            device=config.device,
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
            threads=config.threads,
        )
        return handle

    def _create_environment(self) -> ActorHandle:
        config = self._config
        actor: Any = ray.remote(EnvironmentWorker).options(
            num_cpus=0, max_concurrency=CONCURRENCY, scheduling_strategy=beside_me()
        )
        handle: ActorHandle = actor.remote(
            self.model_dir,
            config.grader_workers,
            RayRollout(self._controller, self.model.id),
            tenant_files=config.tenant_files,
            allow_private=config.remote_environments_allow_private,
        )
        return handle

    def _create_trainer(self) -> ActorHandle:
        config = self._config
        options = self._options(config.trainer_gpus, config.trainer_resources)
        if config.device == "cpu" and not config.trainer_resources:
            options["scheduling_strategy"] = beside_me()
        remote: Any = ray.remote  # its type knows nothing of concurrency groups
        actor = remote(concurrency_groups={COMMITS: COMMITTING})(Trainer).options(**options)
        handle: ActorHandle = actor.remote(
            self.model_dir,
            dtype=self.model.dtype,
            device=config.device,
            threads=config.threads,
            token_budget=config.trainer_token_budget,
            resident_bytes=int(config.trainer_resident_gib * 2**30),
        )
        return handle

    def stop(self) -> None:
        self._rollout.stop()
        self._environment.stop()
        self._trainer.stop()

    # --- rollout ---

    async def generate(self, request: RolloutRequest) -> list[Completion]:
        """Wait for the job's share of the KV cache, then have the least busy rollout worker draw the completions."""
        share = self._jobs.get(request.job_id, UNKNOWN_JOB)
        prompt = len(request.prompt_ids)
        claim = request.n * (prompt + request.max_tokens)
        async with self.admission.admit(
            share.tenant_id, request.job_id, weight=share.weight, priority=share.priority, tokens=claim
        ) as grant:
            completions = await self._rollout.generate(request, claim)
            grant.used = sum(prompt + len(completion.token_ids) for completion in completions)
        return completions

    def rollout_seconds(self, job_id: str) -> float:
        """Accelerator time of the rollout workers spent on a job since the last call."""
        return self._rollout.seconds(job_id)

    async def publish(
        self, commit: Commit, probe_ids: list[int], probe_logprobs: list[float]
    ) -> tuple[AdapterRef, float]:
        """Load a committed version into every rollout worker and prove that it is what was trained.

        Args:
            probe_ids: T token ids; none: no proof is asked for (version 0 equals the base).
            probe_logprobs: the trainer's T-1 log-probabilities of ``probe_ids[1:]``.

        Returns:
            The published version, and the largest mean absolute difference of the probe's log-probabilities.

        Raises:
            PublishError: a worker serves something else.
        """
        reference = AdapterRef(commit.job_id, commit.version, self._next_lora_id(), commit.path, commit.sha256)
        version = Published(reference, probe_ids, probe_logprobs)
        await self._rollout.publish(version)
        return reference, version.gap

    async def retire(self, reference: AdapterRef) -> None:
        """No new request will name this version: free its slot once the running ones end."""
        await self._rollout.retire(reference)

    # --- environment ---

    async def run_group(
        self, spec: JobSpec, policy: Policy, row_index: int, row: DatasetRow, prompt_ids: list[int], n: int,
        temperature: float, seed: int,
    ) -> GroupResult:  # fmt: skip
        """Let ``n`` episodes answer one prompt."""
        result: GroupResult = await self._environment.call(
            "run_group", spec, policy, row_index, row, prompt_ids, n, temperature, seed
        )
        return result

    # --- trainer ---

    async def open_job(self, spec: JobSpec) -> Commit:
        """The job's last commit; version 0 is made where there is none."""
        commit: Commit = await self._in_lane(spec, lambda: self._trainer.call("open_job", *self._opening(spec)))
        self._opened[spec.job_id] = (self._trainer.generation, spec.training.steps)
        return commit

    async def train(self, spec: JobSpec, batch: TrainBatch) -> StepResult:
        """Wait for the lane, make one optimizer step, commit it. The commit is written outside the lane."""
        while True:
            await self._update_in_lane(spec, batch)
            try:
                result: StepResult = await self._trainer.call("commit", spec.job_id, batch.step, group=COMMITS)
                return result
            except UpdateLost as error:
                log.warning("step %d of job %s is made again: %s", batch.step, spec.job_id, error)

    async def _update_in_lane(self, spec: JobSpec, batch: TrainBatch) -> None:
        share = self._jobs.get(spec.job_id, UNKNOWN_JOB)
        await self.lane.share(
            share.tenant_id, spec.job_id, share.weight, (spec, batch), max(1, count_row_tokens(batch)), self._update,
            share.priority,
        )  # fmt: skip

    async def _update(self, works: Sequence[tuple[JobSpec, TrainBatch]]) -> list[Exception | None]:
        """Update jobs in one turn of the trainer; of each what went wrong."""
        closed: dict[str, Exception] = {}

        async def reopen(trainer: ActorHandle, generation: int) -> None:
            # The number of steps shapes the learning rate's schedule, so a job that was extended is opened anew too.
            for spec, _ in works:
                if self._opened.get(spec.job_id) != (generation, spec.training.steps):
                    try:
                        await call_actor(trainer, "open_job", *self._opening(spec))
                        self._opened[spec.job_id] = (generation, spec.training.steps)
                    except TrainingError as error:
                        closed[spec.job_id] = error

        outcomes = await self._trainer.call("update", [batch for _, batch in works], before=reopen)
        return [closed.get(batch.job_id) or outcome for (_, batch), outcome in zip(works, outcomes, strict=True)]

    async def _in_lane(self, spec: JobSpec, work: Callable[[], Awaitable[Any]]) -> Any:
        share = self._jobs.get(spec.job_id, UNKNOWN_JOB)
        return await self.lane.run(share.tenant_id, spec.job_id, share.weight, work, share.priority)

    def _opening(self, spec: JobSpec) -> tuple[JobSpec, str, str]:
        """Arguments of the trainer's ``open_job``."""
        start = spec.start_from
        folder = version_folder(str(self._config.job_dir(start.job_id)), start.version) if start else ""
        return spec, str(self._config.job_dir(spec.job_id)), str(folder)

    async def close_job(self, spec: JobSpec) -> None:
        """Free what the trainer holds of a job, and forget its share. A commit it has begun is written before this
        returns."""
        self._jobs.pop(spec.job_id, None)
        self.lane.forget(spec.tenant_id, spec.job_id)
        self.admission.forget(spec.tenant_id, spec.job_id)
        self._opened.pop(spec.job_id, None)
        await self._trainer.release("close_job", spec.job_id)


def beside_me() -> NodeAffinitySchedulingStrategy:
    """On this node while it lives: what talks most to the controller needs no network to do so."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
