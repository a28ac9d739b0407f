"""The trainer's lane: one piece of work at a time, shared fairly between tenants by the time they use and their weight.

Invariants: never two pieces at once; with T waiting tenants of equal weight and pieces of at most s seconds, a tenant
that has a piece ready waits no longer than T * s plus the piece that is running: each other tenant goes first at most
while its virtual time is lower, that is for one piece.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.scheduling.shares import FairShares
from engine.spec import TenantShare

T = TypeVar("T")


class Lane:
    """Serializes pieces of work; see the module's docstring."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shares = FairShares(clock)
        self._busy = False

    async def run(
        self, tenant_id: str, job_id: str, weight: float, work: Callable[[], Awaitable[T]], priority: int = 0
    ) -> T:
        """Wait for this job's turn, run ``work`` alone, return its result; its errors pass through.

        Cancelling the caller while it waits gives up its place; once ``work`` runs, it is cancelled like any coroutine.
        """
        claim = self._shares.add(tenant_id, job_id, weight=weight, priority=priority, size=0.0)
        self._next()
        try:
            await claim.turn
        except asyncio.CancelledError:
            self._shares.drop(claim)
            if claim.turn.done() and not claim.turn.cancelled():  # the turn came in the same instant: pass it on
                self._busy = False
                self._next()
            raise
        start = self._clock()
        try:
            return await work()
        finally:
            self._shares.charge(claim, self._clock() - start)
            self._busy = False
            # Soon, not now: a caller that comes straight back with more work competes for this turn too.
            asyncio.get_running_loop().call_soon(self._next)

    def forget(self, tenant_id: str, job_id: str) -> None:
        """A job ended: drop its record."""
        self._shares.forget(tenant_id, job_id)

    @property
    def depth(self) -> int:
        """How many pieces wait."""
        return len(self._shares)

    @property
    def busy(self) -> bool:
        """Whether a piece is being worked on."""
        return self._busy

    def describe(self) -> list[TenantShare]:
        """For a person: seconds of the lane by tenant; see ``FairShares.describe``."""
        return self._shares.describe()

    def _next(self) -> None:
        claim = self._shares.first()
        if self._busy or claim is None:
            return
        self._shares.take(claim)
        self._busy = True
        claim.turn.set_result(None)
