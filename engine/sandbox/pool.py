"""The sandbox as the engine uses it: a worker for each version of each tenant's code, fair turns before them.

Invariants: a worker serves one version of one tenant's code and nothing else, ever; every call is answered by a score,
whatever the code does; without a sandbox whose self-test passed nothing runs at all (``refused``). Jobs take turns, and
one's hanging code never holds all workers for longer than one time limit (see :mod:`engine.rewards.turns`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.rewards.turns import FairQueue
from engine.sandbox.replies import error, read_answer
from engine.sandbox.requests import call_of, setup_of
from engine.sandbox.runtime import Level
from engine.sandbox.worker import CannotStart, SandboxWorker, WorkerLost
from engine.spec import CodeTests, Python
from engine.spec.templates import MissingValue
from engine.types import Sample, Score

Key = tuple[str, str]
"""Tenant and digest of the code: whom a worker belongs to."""

REFUSED = (
    "this machine has no working sandbox, so code of tenants does not run here; "
    "`python -m engine.sandbox` on the engine's machine says why"
)


@dataclass(eq=False)
class Call:
    """Samples to be scored together."""

    owner: str
    key: Key
    grader: Python | CodeTests
    payload: Any
    samples: int
    timeout: float
    result: asyncio.Future[list[Score]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def answer(self, scores: list[Score]) -> None:
        if not self.result.done():
            self.result.set_result(scores)

    def fail(self, score: Score) -> None:
        self.answer([score] * self.samples)


class SandboxPool:
    """Runs strangers' code, ``workers`` calls of different code at a time. Use it from one event loop."""

    def __init__(
        self,
        workers: int,
        *,
        level: Level | None = None,
        live: int = 16,
        recycle_after: int = 10_000,
        idle_seconds: float = 300.0,
        together: int = 32,
    ) -> None:
        """
        Args:
            workers: how many may be busy at once, at least 2.
            level: how to confine; None: the strongest whose self-test passes here, found at the first call.
            live: how many may be alive; those used longest ago end first.
            recycle_after: requests after which a worker is replaced.
            idle_seconds: a worker without work for so long ends.
            together: most waiting calls of one job and code that are sent in one request.
        """
        self._queue: FairQueue[Call] = FairQueue(workers)
        self._limit = workers
        self._live = max(live, workers)
        self._recycle_after = recycle_after
        self._idle_seconds = idle_seconds
        self._together = together
        self._level = level
        self._finding_level = asyncio.Lock()
        self._workers: OrderedDict[Key, SandboxWorker] = OrderedDict()  # the one used last at the end
        self._busy: dict[Key, list[Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    async def score(
        self, grader: Python | CodeTests, sample: Sample, *, tenant: str, owner: str, timeout: float
    ) -> Score:
        """Score one sample.

        Args:
            tenant: whose code it is.
            owner: the job; calls of different owners are served in turn.
            timeout: wall-clock limit in seconds, from when the code starts.
        """
        (score,) = await self.score_batch(grader, [sample], tenant=tenant, owner=owner, timeout=timeout)
        return score

    async def score_batch(
        self,
        grader: Python | CodeTests,
        samples: Sequence[Sample],
        *,
        tenant: str,
        owner: str,
        timeout: float,
    ) -> list[Score]:
        """Score samples: by one call of a batch function, else one by one, each with its own time limit."""
        if self._closed:
            raise RuntimeError("the sandbox pool is closed")
        if not samples:
            return []
        if await self._level_here() == "none":
            return [error("refused", REFUSED)] * len(samples)
        if isinstance(grader, Python) and grader.batch:
            call = Call(
                owner, _key(tenant, grader), grader, [call_of(grader, s) for s in samples], len(samples), timeout
            )
            self._queue.put(call)
            self._dispatch()
            return await call.result
        calls = [self._single(grader, sample, tenant, owner, timeout) for sample in samples]
        self._dispatch()
        results = await asyncio.gather(*(call.result for call in calls))
        return [score for (score,) in results]

    def worker_id(self, tenant: str, grader: Python | CodeTests) -> int | None:
        """Process id of the worker of that code, None where none runs."""
        worker = self._workers.get(_key(tenant, grader))
        return worker.id if worker else None

    async def close(self) -> None:
        """End every worker. Calls not yet answered are cancelled."""
        self._closed = True
        if self._reaper:
            self._reaper.cancel()
        for call in [*self._queue.clear(), *(call for calls in self._busy.values() for call in calls)]:
            call.result.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        self._workers.clear()

    async def _level_here(self) -> Level:
        async with self._finding_level:
            if self._level is None:
                from engine.sandbox.level import detect

                self._level = (await asyncio.to_thread(detect)).level
            return self._level

    def _single(self, grader: Python | CodeTests, sample: Sample, tenant: str, owner: str, timeout: float) -> Call:
        call = Call(owner, _key(tenant, grader), grader, None, 1, timeout)
        try:
            call.payload = call_of(grader, sample)
        except MissingValue as missing:
            call.fail(error("grader", f"a template's value is missing: {missing}"))
        else:
            self._queue.put(call)
        return call

    def _dispatch(self) -> None:
        while len(self._busy) < self._limit and (call := self._queue.start_next(lambda one: one.key not in self._busy)):
            calls = [call]
            if isinstance(call.grader, Python) and not call.grader.batch:
                calls += self._queue.take_along(call.owner, _joins(call), self._together - 1)
            self._busy[call.key] = calls
            self._spawn(self._run(call.key, calls))

    async def _run(self, key: Key, calls: list[Call]) -> None:
        """Answer the calls: all of one owner, of one code, with one time limit."""
        owner = calls[0].owner
        try:
            worker = await self._worker(key, calls[0])
            lost = 0
            while calls:
                try:
                    async for answer in worker.answers([call.payload for call in calls], calls[0].timeout):
                        call = calls[0]
                        call.answer(read_answer(call.grader, answer, call.samples, call.timeout))
                        calls.pop(0)
                        if answer["ended"] == "timed_out":
                            self._queue.suspect(owner)
                except WorkerLost as loss:
                    lost += 1
                    if loss.hung or lost > 1:  # once it may have been somebody else's doing
                        calls.pop(0).fail(loss.score())
                        self._queue.suspect(owner)
            if worker.requests >= self._recycle_after:
                await worker.stop()
        except CannotStart as failure:
            for call in calls:
                call.fail(failure.score)
        finally:
            for call in calls:
                call.result.cancel()
            del self._busy[key]
            self._queue.finished(owner)
        self._reap_later()
        self._dispatch()

    async def _worker(self, key: Key, call: Call) -> SandboxWorker:
        """The worker of the code, newly made where it has none."""
        if key not in self._workers:
            assert self._level in ("bubblewrap", "landlock")
            self._workers[key] = SandboxWorker(self._level, setup_of(call.grader))
        self._workers.move_to_end(key)
        idle = [other for other in self._workers if other not in self._busy]
        excess = idle[: max(0, len(self._workers) - self._live)]
        await asyncio.gather(*(self._workers.pop(other).stop() for other in excess))
        return self._workers[key]

    def _reap_later(self) -> None:
        if self._reaper is None and not self._closed:
            self._reaper = asyncio.get_running_loop().call_later(self._idle_seconds, self._reap)

    def _reap(self) -> None:
        self._reaper = None
        before = time.monotonic() - self._idle_seconds
        for key in [key for key in self._workers if key not in self._busy and self._workers[key].used <= before]:
            self._spawn(self._end(self._workers.pop(key)))
        if self._workers:
            self._reap_later()

    async def _end(self, worker: SandboxWorker) -> None:
        await worker.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _joins(first: Call) -> Callable[[Call], bool]:
    return lambda call: call.key == first.key and call.timeout == first.timeout


def _key(tenant: str, grader: Python | CodeTests) -> Key:
    return tenant, hashlib.sha256(grader.model_dump_json().encode()).hexdigest()
