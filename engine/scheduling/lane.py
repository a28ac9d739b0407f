"""The trainer's lane: one turn at a time, shared fairly between tenants by the time they use and their weight.

A turn is one piece of work, or several small ones of different jobs that are worked on together (``share``).

Invariants: never two turns at once; a turn holds one piece of any size, or pieces that fit its capacity together and,
by what the last turn took, take no longer than ``TURN_SECONDS``, in fair order without overtaking; with T waiting
tenants of equal weight and turns of at most s seconds, a tenant that has a piece ready waits no longer than T * s plus
the turn that is running: each other tenant goes first at most while its virtual time is lower, that is for one piece.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.scheduling.shares import Claim, FairShares
from engine.spec import TenantShare

T = TypeVar("T")

TURN_SECONDS = 4.0
"""A shared turn is meant to take no longer: meanwhile nobody else's piece is worked on."""


@dataclass(frozen=True)
class _Shared:
    """A piece that may be worked on together with others; its claim's ``turn`` gets the result."""

    claim: Claim
    item: Any
    together: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]


class Lane:
    """Serializes pieces of work; see the module's docstring."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, capacity: float = 0.0) -> None:
        """``capacity``: pieces of a turn add up to at most this size, but for a single one."""
        self._clock = clock
        self._capacity = capacity
        self._shares = FairShares(clock)
        self._shared: dict[int, _Shared] = {}
        """Waiting pieces that may be worked on together, by the order of their claims."""
        self._seconds_per_size = 0.0
        """Of the last turn of pieces that may be shared and did not fail; until then each has a turn of its own."""
        self._turns: set[asyncio.Task[None]] = set()
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

    async def share(
        self, tenant_id: str, job_id: str, weight: float, item: T, size: float,
        together: Callable[[Sequence[T]], Awaitable[Sequence[Any]]], priority: int = 0,
    ) -> Any:  # fmt: skip
        """Wait for this job's turn, in which ``together`` works on its item and on others of the same ``together``, as
        many as fit. Returns the item's result or, where it is an exception, raises it.

        Cancelling the caller while it waits gives up its place; what has begun is finished, and its result forgotten.
        """
        claim = self._shares.add(tenant_id, job_id, weight=weight, priority=priority, size=size)
        self._shared[claim.order] = _Shared(claim, item, together)
        self._next()
        try:
            return await claim.turn
        except asyncio.CancelledError:
            self._shares.drop(claim)
            self._shared.pop(claim.order, None)
            raise

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
        self._busy = True
        if claim.order in self._shared:
            # Outside the caller's context: Ray, which cancels what a cancelled call has called, must not take the turn
            # for a part of the call that happened to begin it.
            turn = asyncio.get_running_loop().create_task(self._turn(self._take(claim)), context=contextvars.Context())
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)
        else:
            self._shares.take(claim)
            claim.turn.set_result(None)

    def _take(self, claim: Claim) -> list[_Shared]:
        """The pieces of a turn that begins with this claim, each charged with what it will about use: a tenant with
        many pieces has no more of them in the turn than its share."""
        pieces: list[_Shared] = []
        size, estimate = 0.0, self._seconds_per_size
        limit = min(self._capacity, TURN_SECONDS / estimate) if estimate else 0.0
        following: Claim | None = claim
        while following is not None and (piece := self._shared.get(following.order)) is not None:
            size += following.size
            if pieces and (size > limit or piece.together != pieces[0].together):
                break
            self._shares.take(following)
            self._shares.charge(following, estimate * following.size)
            pieces.append(self._shared.pop(following.order))
            following = self._shares.first()
        return pieces

    async def _turn(self, pieces: list[_Shared]) -> None:
        start, estimate = self._clock(), self._seconds_per_size
        size = sum(piece.claim.size for piece in pieces)
        try:
            results = list(await pieces[0].together([piece.item for piece in pieces]))
            if len(results) != len(pieces):
                raise RuntimeError(f"{len(results)} results came for {len(pieces)} pieces of a turn")
        except Exception as error:
            results = [error] * len(pieces)
        else:
            self._seconds_per_size = (self._clock() - start) / size
        each = (self._clock() - start) / size
        for piece, result in zip(pieces, results, strict=True):
            self._shares.charge(piece.claim, (each - estimate) * piece.claim.size)
            if piece.claim.turn.done():
                continue  # its caller was cancelled
            if isinstance(result, BaseException):
                piece.claim.turn.set_exception(result)
            else:
                piece.claim.turn.set_result(result)
        self._busy = False
        asyncio.get_running_loop().call_soon(self._next)
