"""Simulated machines: processors shared by what runs on them, and a rollout engine that batches. For virtual time.

Invariant: work is conserved: the integral of a consumer's speed over the time it was busy is the work it was given.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Sequence


class Cores:
    """``count`` cores. Stages that want more of them than there are all become slower by the same factor."""

    def __init__(self, count: float) -> None:
        self.count = count
        self._wanted: dict[Progress, float] = {}

    def want(self, progress: Progress, cores: float) -> None:
        """From now on ``progress`` wants so many cores; 0: it is idle."""
        if cores:
            self._wanted[progress] = cores
        else:
            self._wanted.pop(progress, None)
        factor = min(1.0, self.count / total) if (total := sum(self._wanted.values())) else 1.0
        for one in self._wanted:
            one.set_factor(factor)


class Progress:
    """Work done so far, growing at a rate that may change at any time; whoever waits for a certain amount is woken."""

    def __init__(self, cores: Cores, demand: float = 1.0) -> None:
        """``demand``: cores it keeps busy while it has work."""
        self._cores, self._demand = cores, demand
        self._done, self._rate, self._factor = 0.0, 0.0, 1.0
        self._since = 0.0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self.busy_seconds = 0.0
        self.intervals: list[tuple[float, float]] = []
        self._busy_from = 0.0

    @property
    def done(self) -> float:
        self._advance()
        return self._done

    def set_rate(self, rate: float) -> None:
        """Work a second, where it has the cores it wants; 0: idle."""
        self._advance()
        now = asyncio.get_running_loop().time()
        if bool(rate) != bool(self._rate):
            if rate:
                self._busy_from = now
            else:
                self.busy_seconds += now - self._busy_from
                self.intervals.append((self._busy_from, now))
        self._rate = rate
        self._cores.want(self, self._demand if rate else 0.0)
        self._schedule()

    def set_factor(self, factor: float) -> None:
        if factor != self._factor:
            self._advance()
            self._factor = factor
            self._schedule()

    async def until(self, amount: float) -> None:
        """Wait until so much is done in all."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (amount, next(self._order), reached))
        self._schedule()
        await reached

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        self._done += (now - self._since) * self._rate * self._factor
        self._since = now

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        speed = self._rate * self._factor
        if self._waiting and speed:
            left = max(0.0, self._waiting[0][0] - self._done)
            self._timer = asyncio.get_running_loop().call_later(left / speed, self._reach)

    def _reach(self) -> None:
        self._advance()
        while self._waiting and self._waiting[0][0] <= self._done + 1e-9:
            _, _, reached = heapq.heappop(self._waiting)
            if not reached.done():
                reached.set_result(None)
        self._schedule()


class Worker:
    """One piece of work at a time, first come first served: an actor that is one thread."""

    def __init__(self, cores: Cores, demand: float = 1.0) -> None:
        self.progress = Progress(cores, demand)
        self._free = asyncio.Lock()

    async def work(self, seconds: float) -> None:
        """``seconds``: what it takes with all the cores it wants."""
        if seconds <= 0:
            return
        async with self._free:
            self.progress.set_rate(1.0)
            await self.progress.until(self.progress.done + seconds)
            self.progress.set_rate(0.0)


class BatchingEngine:
    """A rollout engine: every decoding step gives each running sequence one token and takes
    ``step + token * sequences`` seconds."""

    def __init__(self, cores: Cores, demand: float, *, step: float, token: float, max_sequences: int) -> None:
        self.progress = Progress(cores, demand)
        self._step, self._token = step, token
        self._free = max_sequences
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._running = 0
        self.tokens = 0

    async def decode(self, lengths: Sequence[int]) -> None:
        """Run the sequences of a request to their ends; they begin together, as soon as there is room for all."""
        await self._enter(len(lengths))
        start = self.progress.done
        for length in sorted(lengths):
            await self.progress.until(start + length)
            self.tokens += length
            self._change(-1)

    async def _enter(self, count: int) -> None:
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((count, admitted))
        self._admit()
        await admitted

    def _admit(self) -> None:
        while self._queue and self._queue[0][0] <= self._free:
            count, admitted = self._queue.popleft()
            self._change(count)
            admitted.set_result(None)

    def _change(self, by: int) -> None:
        self._running += by
        self._free -= by
        self.progress.set_rate(1.0 / (self._step + self._token * self._running) if self._running else 0.0)
        if by < 0:
            self._admit()
