"""A pool in virtual time: production's scheduling code over simulated actors.

What decides is the real thing: ``engine.pool.Pool`` (which worker draws, publishing to all, when to open a job),
``Admission``, ``Lane``, ``FairShares``, ``AdapterSlots`` and ``Collector``. What takes time is simulated: decoding,
training, publishing, the environment's answers. A job's course is that of ``engine.job.JobRun``, without its reports.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.collector import Collector
from engine.config import EngineConfig
from engine.environments.worker import GroupResult
from engine.pool import TURN_BUDGETS, Pool
from engine.prompts import Prompts
from engine.rollout.slots import AdapterSlots
from engine.rollout.workers import RolloutWorkers, Seat
from engine.scheduling.lane import Lane
from engine.scheduling.metering import SharedMeter
from engine.spec import JobSpec
from engine.types import (
    AdapterRef,
    Commit,
    Completion,
    Group,
    Policy,
    RolloutRequest,
    Score,
    StepResult,
    TrainBatch,
    Trajectory,
)
from tests.benchmarks.processors import BatchingEngine, Cores, Worker
from tests.benchmarks.slow_tool import waiting_time


@dataclass(frozen=True)
class Times:
    """What the stages take, in seconds, on the hardware that is simulated."""

    call: float
    """A request to the rollout, beside its decoding: prefill and the way there and back."""
    step: float
    """A decoding step, and ..."""
    token: float
    """... what each sequence adds to it."""
    train: float
    """A training step's constant part in the lane."""
    train_token: float
    """What each sampled token adds to it."""
    commit: float
    """Writing a version, beside the lane."""
    load: float
    """Loading an adapter version into a rollout worker."""
    probe: float
    turn: float = 0.0
    """A turn of the lane's constant part, however many jobs share it."""
    open: float = 0.05
    prepare: float = 0.0
    """Reading a job's dataset when it begins, in the controller."""
    between: float = 0.0
    """A step's rest, waiting for nothing that is shared."""
    controller: float = 0.0
    """The controller's processor time, a step. One thread serves all jobs."""
    environment: float = 0.0
    """The environment worker's, a request to the rollout."""
    reopen: float = 0.05
    """Reading a job's state back from the store, where it was not in the trainer's memory."""
    rollout_cores: float = 1.0
    """Cores a rollout worker keeps busy; 1 where it has an accelerator of its own."""
    trainer_cores: float = 1.0


@dataclass(frozen=True)
class Shape:
    """A pool's hardware."""

    rollout_workers: int = 1
    lanes: int = 1
    """Trainers, each a serialized lane of its own; a job stays with one. Production has one."""
    cores: float | None = None
    """Cores all stages share; None: each has its own accelerator."""
    kv_tokens: int = 400_000
    """KV cache of a rollout worker, in tokens."""
    max_sequences: int = 128
    slots: int = 32
    resident_jobs: int = 32


@dataclass
class Episodes:
    """What the jobs' episodes are like, drawn from those that were played or from a distribution."""

    length: Callable[[random.Random], int]
    """Tokens of one turn."""
    turns: Callable[[random.Random], int] = lambda rng: 1
    prompt: int = 30
    wait_scale: float = 0.0
    """Of the environment's answering times (``tests.benchmarks.slow_tool``)."""


@dataclass
class Log:
    """What happened to the jobs of a simulation."""

    steps: dict[str, list[float]] = field(default_factory=dict)
    """By job, when each step was published."""
    waits: list[float] = field(default_factory=list)
    """Of each batch, for its lane."""
    ended: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    """By job, tokens trained."""


class _Actor:
    """Stands for a ``RestartingActor``: ``call`` runs the method of this name."""

    generation = 1

    def __init__(self, label: str) -> None:
        self.label = label

    async def call(
        self, method: str, *args: Any, before: Callable[[Any, int], Awaitable[Any]] | None = None, group: str = ""
    ) -> Any:
        if before is not None:
            await before(None, self.generation)
        return await getattr(self, method)(*args)

    async def release(self, method: str, *args: Any) -> None:
        await getattr(self, method)(*args)


class SimulatedRollout(_Actor):
    def __init__(self, index: int, pool: SimulatedPool, cores: Cores) -> None:
        super().__init__(f"rollout worker {index}")
        times, shape = pool.times, pool.shape
        self._times, self._pool = times, pool
        self.engine = BatchingEngine(
            cores, times.rollout_cores, step=times.step, token=times.token, max_sequences=shape.max_sequences
        )
        self._slots = AdapterSlots(shape.slots, self._load, self._unload)
        self._loader = Worker(cores)

    async def generate(self, request: RolloutRequest) -> list[Completion]:
        rng = random.Random(request.seed)
        lengths = [min(request.max_tokens, self._pool.episodes.length(rng)) for _ in range(request.n)]
        assert isinstance(request.policy, AdapterRef)
        async with self._slots.use(request.policy):
            await asyncio.sleep(self._times.call)
            await self.engine.decode(lengths)
        return [Completion(range(length), (), "", "stop", request.policy.name) for length in lengths]  # type: ignore[arg-type]

    async def load_adapter(self, ref: AdapterRef) -> None:
        await self._slots.load(ref)

    async def score(self, ref: AdapterRef, ids: list[int]) -> list[float]:
        async with self._slots.use(ref):
            await asyncio.sleep(self._times.probe)
        return [0.0] * (len(ids) - 1)

    async def remove_adapter(self, ref: AdapterRef) -> None:
        await self._slots.remove(ref)

    async def _load(self, ref: AdapterRef) -> None:
        await self._loader.work(self._times.load)

    async def _unload(self, ref: AdapterRef) -> None:
        pass


class SimulatedWorkers(RolloutWorkers):
    """``RolloutWorkers`` that all serve from the start."""

    def __init__(
        self,
        rollouts: list[SimulatedRollout],
        kv_tokens: int,
        clock: Callable[[], float],
        resized: Callable[[int], None],
    ) -> None:
        super().__init__(_no_actor, 1.0, resized)
        self._rollouts = rollouts
        self._meters = defaultdict(lambda: SharedMeter(clock))
        for index in range(len(rollouts)):
            seat = self._seats[index] = Seat(index, _no_actor)
            seat.serving, seat.capacity = True, kv_tokens
        self._changed()

    async def _call(self, seat: Seat, method: str, *args: Any) -> Any:
        return await self._rollouts[seat.index].call(method, *args)


def _no_actor() -> Any:
    raise AssertionError("a simulation starts no actor")


class SimulatedTrainer(_Actor):
    def __init__(self, index: int, pool: SimulatedPool, cores: Cores) -> None:
        super().__init__(f"trainer {index}")
        self._times, self._limit = pool.times, pool.shape.resident_jobs
        self.worker = Worker(cores, pool.times.trainer_cores)
        self._resident: OrderedDict[str, None] = OrderedDict()

    async def open_job(self, spec: JobSpec, *_: str) -> Commit:
        await self.worker.work(self._times.open)
        self._keep(spec.job_id)
        return commit_of(spec.job_id, 0)

    async def commit(self, job_id: str, step: int) -> StepResult:
        await asyncio.sleep(self._times.commit)
        return StepResult(commit_of(job_id, step), {}, [0.0])

    async def update(self, batches: list[TrainBatch]) -> list[None]:
        seconds = self._times.turn
        for batch in batches:
            seconds += self._times.train + self._times.train_token * sampled_tokens(batch)
            seconds += 0.0 if batch.job_id in self._resident else self._times.reopen
        await self.worker.work(seconds)
        for batch in batches:
            self._keep(batch.job_id)
        return [None] * len(batches)

    async def close_job(self, job_id: str) -> None:
        self._resident.pop(job_id, None)

    def _keep(self, job_id: str) -> None:
        self._resident[job_id] = None
        self._resident.move_to_end(job_id)
        while len(self._resident) > self._limit:
            self._resident.popitem(last=False)


class SimulatedPool(Pool):
    """A running ``Pool`` whose actors are simulated. Make it inside a virtual-time loop."""

    def __init__(self, specs: list[JobSpec], times: Times, shape: Shape, episodes: Episodes) -> None:
        self.times, self.shape, self.episodes = times, shape, episodes
        config = EngineConfig(var=Path("/nowhere"), rollout_workers=shape.rollout_workers)
        super().__init__(specs[0].base_model, config, None, itertools.count(1).__next__)  # type: ignore[arg-type]
        clock = asyncio.get_running_loop().time
        shared = Cores(shape.cores) if shape.cores else None
        self._lanes = [Lane(clock, TURN_BUDGETS * config.trainer_token_budget) for _ in range(shape.lanes)]
        self._lane_of: dict[str, int] = {}
        self.rollouts = [SimulatedRollout(i, self, shared or Cores(1)) for i in range(shape.rollout_workers)]
        self.trainers = [SimulatedTrainer(i, self, shared or Cores(1)) for i in range(shape.lanes)]
        self._rollout = SimulatedWorkers(self.rollouts, shape.kv_tokens, clock, self.admission.resize)
        self.controller = Worker(shared or Cores(1))
        self.environment = Worker(shared or Cores(1))

    def _lane_index(self, spec: JobSpec) -> int:
        return self._lane_of.setdefault(spec.job_id, len(self._lane_of) % self.shape.lanes)

    async def _in_lane(self, spec: JobSpec, work: Callable[[], Awaitable[Any]]) -> Any:
        index = self._lane_index(spec)

        async def with_this_trainer() -> Any:
            self._trainer = self.trainers[index]  # type: ignore[assignment]
            return await work()

        self.lane = self._lanes[index]
        return await super()._in_lane(spec, with_this_trainer)

    async def _update_in_lane(self, spec: JobSpec, batch: TrainBatch) -> None:
        self.lane = self._lanes[self._lane_index(spec)]
        await super()._update_in_lane(spec, batch)

    async def _update(self, works: Sequence[tuple[JobSpec, TrainBatch]]) -> list[Exception | None]:
        self._trainer = self.trainers[self._lane_index(works[0][0])]  # type: ignore[assignment]
        return await super()._update(works)

    async def close_job(self, spec: JobSpec) -> None:
        index = self._lane_index(spec)
        self.lane, self._trainer = self._lanes[index], self.trainers[index]  # type: ignore[assignment]
        await super().close_job(spec)

    async def run_group(
        self, spec: JobSpec, policy: Policy, row_index: int, row: Any, prompt_ids: list[int], n: int,
        temperature: float, seed: int,
    ) -> GroupResult:  # fmt: skip
        """As ``EnvironmentWorker.run_group``: a first turn of all episodes together, then each by itself."""
        request = RolloutRequest(policy, prompt_ids, n, spec.sampling.max_tokens, temperature, seed, spec.job_id)
        await self.environment.work(self.times.environment)
        first = await self.generate(request)
        lengths = await asyncio.gather(
            *(self._play(request, index, len(one.token_ids)) for index, one in enumerate(first))
        )
        await self.environment.work(self.times.environment)
        trajectories = [
            Trajectory(range(length), (), (), 0, "", False, Score(0.0))  # type: ignore[arg-type]
            for length in lengths
        ]
        return GroupResult(Group(row_index, prompt_ids, "", "", trajectories), [], {"rollout": 0.0, "environment": 0.0})

    async def _play(self, first: RolloutRequest, index: int, length: int) -> int:
        """An episode's tokens."""
        rng = random.Random(first.seed * 1009 + index)
        total = length
        for turn in range(2, (self.episodes.turns(rng) if self.episodes.wait_scale else 1) + 1):
            await asyncio.sleep(self.episodes.wait_scale * waiting_time(first.seed, index, turn))
            await self.environment.work(self.times.environment)
            request = RolloutRequest(
                first.policy, first.prompt_ids, 1, first.max_tokens, 1.0, rng.randrange(2**31), first.job_id
            )
            (completion,) = await self.generate(request)
            total += len(completion.token_ids)
        if self.episodes.wait_scale:  # the last reply is answered too
            await asyncio.sleep(self.episodes.wait_scale * waiting_time(first.seed, index, "last"))
        return total


def sampled_tokens(batch: TrainBatch) -> int:
    return sum(len(one.token_ids) for group in batch.groups for one in group.trajectories)


def commit_of(job_id: str, version: int) -> Commit:
    return Commit(job_id, version, version, 0, "", f"{job_id}{version}", 1, 8)


async def run_job(pool: SimulatedPool, spec: JobSpec, log: Log, until: float = float("inf")) -> None:
    """A job's course as in ``engine.job.JobRun``; no step begins after ``until``."""
    loop = asyncio.get_running_loop()
    pool.register(spec, 0)
    await pool.controller.work(pool.times.prepare)
    commit = await pool.open_job(spec)
    policy, _ = await pool.publish(commit, [], [])
    prompt = range(pool.episodes.prompt)
    prompts = Prompts([(0, None)] * 64, [prompt] * 64, [], [])  # type: ignore[list-item]
    collector = Collector(spec, pool, prompts, 0)
    retiring: set[asyncio.Task[None]] = set()
    steps = log.steps.setdefault(spec.job_id, [])
    while commit.step < spec.training.steps and loop.time() < until:
        left = spec.training.steps - commit.step
        drawn = await collector.next(policy, left)
        collector.draw_ahead(policy, 0, left)
        await pool.controller.work(pool.times.controller)
        await asyncio.sleep(pool.times.between)
        batch = TrainBatch(spec.job_id, commit.step + 1, drawn.cursor, drawn.groups, [], [0, 1])
        ready = loop.time()
        result = await pool.train(spec, batch)
        previous, commit = policy, result.commit
        tokens = sampled_tokens(batch)
        taken = pool.times.turn + pool.times.train + pool.times.train_token * tokens
        log.waits.append(max(0.0, loop.time() - ready - taken))
        log.tokens[spec.job_id] = log.tokens.get(spec.job_id, 0) + tokens
        policy, _ = await pool.publish(commit, batch.probe_ids, result.probe_logprobs)
        steps.append(loop.time())
        task = asyncio.create_task(pool.retire(previous))
        retiring.add(task)
        task.add_done_callback(retiring.discard)
    collector.cancel()
    await asyncio.gather(*retiring)
    await pool.retire(policy)
    await pool.close_job(spec)
    log.ended[spec.job_id] = loop.time()
