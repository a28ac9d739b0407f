"""The trainer's lane: one piece of work at a time, shared fairly between tenants by time used and weight.

Start-time fair queueing (Goyal, Vin, Chen 1996) over tenants, and over the jobs of a tenant: whoever has used the
least time for its weight goes next. A tenant that was idle starts at the lane's virtual time:
idling earns no credit.

Invariants: never two pieces at once; a waiting piece is passed over by another tenant's at most while that tenant's
virtual time is lower, so with T waiting tenants of equal weight and pieces of at most s seconds none waits longer than
T * s plus the piece that is running.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class _Waiting:
    tenant_id: str
    job_id: str
    order: int
    turn: asyncio.Future[None]


@dataclass
class _Share:
    """Virtual time of a tenant, and of each of its jobs."""

    used: float = 0.0
    jobs: dict[str, float] = field(default_factory=dict)


class Lane:
    """Serializes pieces of work; see the module's docstring."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._shares: dict[str, _Share] = {}
        self._busy = False
        self._virtual_time = 0.0
        self._orders = itertools.count()

    async def run(self, tenant_id: str, job_id: str, weight: float, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for this job's turn, run ``work`` alone, return its result; its errors pass through.

        Cancelling the caller while it waits gives up its place; once ``work`` runs, it is cancelled like any coroutine.
        """
        entry = _Waiting(tenant_id, job_id, next(self._orders), asyncio.get_running_loop().create_future())
        share = self._shares.setdefault(tenant_id, _Share())
        if not any(other.tenant_id == tenant_id for other in self._waiting):
            share.used = max(share.used, self._virtual_time)
        share.jobs.setdefault(job_id, min(share.jobs.values(), default=0.0))
        self._waiting.append(entry)
        self._next()
        try:
            await entry.turn
        except asyncio.CancelledError:
            self._waiting = [other for other in self._waiting if other is not entry]
            if entry.turn.done() and not entry.turn.cancelled():  # the turn came in the same instant: pass it on
                self._busy = False
                self._next()
            raise
        start = self._clock()
        try:
            return await work()
        finally:
            seconds = self._clock() - start
            share.used += seconds / weight
            share.jobs[job_id] = share.jobs.get(job_id, 0.0) + seconds
            self._busy = False
            # Soon, not now: a caller that comes straight back with more work competes for this turn too.
            asyncio.get_running_loop().call_soon(self._next)

    def forget(self, tenant_id: str, job_id: str) -> None:
        """A job ended: drop its record."""
        share = self._shares.get(tenant_id)
        if share:
            share.jobs.pop(job_id, None)

    @property
    def depth(self) -> int:
        """How many pieces wait."""
        return len(self._waiting)

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        entry = min(self._waiting, key=self._rank)
        self._waiting.remove(entry)
        self._virtual_time = max(self._virtual_time, self._shares[entry.tenant_id].used)
        self._busy = True
        entry.turn.set_result(None)

    def _rank(self, entry: _Waiting) -> tuple[float, float, int]:
        share = self._shares[entry.tenant_id]
        return share.used, share.jobs[entry.job_id], entry.order
