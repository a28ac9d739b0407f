"""The production controller, watched, and where a run asks for it held at barriers.

``BenchController`` is ``engine.controller.Controller`` but for the pool it makes: ``WatchedPool`` is
``engine.pool.Pool`` that notes when each call to an actor began and ended and, in synchronous runs only, lets a stage
begin once every job has come to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import ray

from engine.config import EngineConfig
from engine.controller import Controller
from engine.environments.worker import GroupResult
from engine.pool import Pool
from engine.spec import BaseModelSpec, JobSpec
from engine.types import AdapterRef, Commit, StepResult, TrainBatch

DRAW, TRAIN, PUBLISH = range(3)
Call = tuple[str, str, float, float]
"""Method of an actor, job, start and end in seconds since the epoch."""


class StageBarrier:
    """Lets a job into a stage once all jobs of the run have come to it, or have ended.

    Stages are counted through the run: draw, train, publish, draw, ... A job that is behind holds all others.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._stage: dict[str, float] = {}
        self._moved = asyncio.Condition()

    async def come(self, job_id: str, stage: int) -> None:
        """Wait for all at ``stage``."""
        async with self._moved:
            self._stage[job_id] = max(self._stage.get(job_id, 0), stage)
            self._moved.notify_all()
            await self._moved.wait_for(lambda: self._all_at(stage))

    async def leave(self, job_id: str) -> None:
        """A job has ended: nobody waits for it any more."""
        async with self._moved:
            self._stage[job_id] = float("inf")
            self._moved.notify_all()

    def _all_at(self, stage: int) -> bool:
        return len(self._stage) >= self._jobs and min(self._stage.values()) >= stage


class WatchedPool(Pool):
    """See the module's docstring."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls: list[Call] = []
        self.barrier: StageBarrier | None = None
        self._rounds: dict[str, int] = {}

    async def start(self, rollout_workers: int) -> None:
        await super().start(rollout_workers)
        for actor in (self._environment, self._trainer):
            actor.call = self._watched(actor.call)  # type: ignore[method-assign]
        ask = self._rollout._call
        self._rollout._call = lambda seat, *args: self._watched(partial(ask, seat))(*args)  # type: ignore[method-assign]

    def _watched(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def watched(method: str, *args: Any, **more: Any) -> Any:
            start = time.time()
            try:
                return await call(method, *args, **more)
            finally:
                end = time.time()
                self.calls += [(method, job_id, start, end) for job_id in jobs_of(args)]

        return watched

    async def run_group(self, spec: JobSpec, *args: Any) -> GroupResult:  # type: ignore[override]
        await self._come(spec.job_id, DRAW)
        return await super().run_group(spec, *args)

    async def train(self, spec: JobSpec, batch: TrainBatch) -> StepResult:
        await self._come(spec.job_id, TRAIN)
        return await super().train(spec, batch)

    async def publish(
        self, commit: Commit, probe_ids: list[int], probe_logprobs: list[float]
    ) -> tuple[AdapterRef, float]:
        if probe_ids:
            await self._come(commit.job_id, PUBLISH)
            self._rounds[commit.job_id] = self._rounds.get(commit.job_id, 0) + 1
        return await super().publish(commit, probe_ids, probe_logprobs)

    async def close_job(self, spec: JobSpec) -> None:
        if self.barrier is not None:
            await self.barrier.leave(spec.job_id)
        await super().close_job(spec)

    async def _come(self, job_id: str, stage: int) -> None:
        if self.barrier is not None:
            await self.barrier.come(job_id, 3 * self._rounds.get(job_id, 0) + stage)


def jobs_of(args: tuple[Any, ...]) -> list[str]:
    """The jobs a call is for, where its first argument names them; else one without a name."""
    first = args[0] if args else ""
    if isinstance(first, list):
        return [getattr(one, "job_id", "") for one in first]
    return [first if isinstance(first, str) else getattr(first, "job_id", "")]


class BenchController(Controller):
    """See the module's docstring."""

    async def _start_pool(self, model: BaseModelSpec) -> Pool:
        this = ray.get_runtime_context().current_actor
        pool = WatchedPool(model, self._config, this, self._ledger.next_lora_id)
        await pool.start(self._rollout_workers(model.id))
        return pool

    async def begin(self, model: BaseModelSpec, barrier_of: int) -> None:
        """Start the model's pool where it is not up, forget the calls so far, and hold the next run's jobs at barriers
        (0: none)."""
        pool = await self._pool(model)
        assert isinstance(pool, WatchedPool)
        pool.calls.clear()
        pool.barrier = StageBarrier(barrier_of) if barrier_of else None

    async def calls(self, model: BaseModelSpec) -> list[Call]:
        """The calls that have ended since ``begin``."""
        pool = await self._pool(model)
        assert isinstance(pool, WatchedPool)
        return pool.calls


def start_controller(config: EngineConfig) -> ray.actor.ActorHandle:
    """As ``engine.controller.connect``, but it ends with this driver."""
    actor: Any = ray.remote(BenchController).options(num_cpus=0, max_concurrency=100_000)
    handle: ray.actor.ActorHandle = actor.remote(config)
    return handle
