"""Admission to the rollout: a budget of KV-cache tokens, shared fairly between tenants by the tokens they use.

A request claims the most it can come to hold in the cache (prompt plus longest completion, for each completion). Claims
are granted in fair order (``engine.scheduling.shares``), and the first in that order is never overtaken: if it does
not fit yet, everybody waits until it does. So a long prompt is not starved by short ones; and short ones not by long
ones, since tokens, not requests, are counted.

Invariants: the sum of granted claims never exceeds the budget, but for a single claim larger than all of it, which
is served alone; with C the budget, and requests that hold their claims for at most s seconds, the first in order waits
at most s; a tenant of T with equal weights has at least a T-th of the tokens while it has requests waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine.scheduling.shares import FairShares
from engine.spec import TenantShare


@dataclass
class Grant:
    """An admitted request; set ``used`` to the tokens it really took before it ends."""

    tokens: float
    used: float | None = None


class Admission:
    """See the module's docstring. Use it from one event loop."""

    def __init__(self, budget: int) -> None:
        """``budget``: tokens the KV caches of all rollout workers hold."""
        self.budget = budget
        self.granted = 0.0
        self._shares = FairShares()

    @asynccontextmanager
    async def admit(
        self, tenant_id: str, job_id: str, *, weight: float, priority: int, tokens: float
    ) -> AsyncIterator[Grant]:
        """Wait until the request may run; it runs inside the ``async with``."""
        claim = self._shares.add(tenant_id, job_id, weight=weight, priority=priority, size=tokens)
        self._grant()
        try:
            await claim.turn
        except asyncio.CancelledError:
            self._shares.drop(claim)
            if claim.turn.done() and not claim.turn.cancelled():
                self._give_back(tokens)
            else:
                self._grant()  # it may have been the first, in front of others that fit
            raise
        grant = Grant(tokens)
        try:
            yield grant
        finally:
            if grant.used is not None:
                self._shares.charge(claim, grant.used - tokens)
            self._give_back(tokens)

    def resize(self, budget: int) -> None:
        """The caches hold ``budget`` tokens from now on. What is granted already stays so."""
        self.budget = budget
        self._grant()

    def forget(self, tenant_id: str, job_id: str) -> None:
        """A job ended: drop its record."""
        self._shares.forget(tenant_id, job_id)

    @property
    def depth(self) -> int:
        """How many requests wait."""
        return len(self._shares)

    def describe(self) -> list[TenantShare]:
        """For a person: tokens by tenant; see ``FairShares.describe``."""
        return self._shares.describe()

    def _give_back(self, tokens: float) -> None:
        self.granted -= tokens
        self._grant()

    def _grant(self) -> None:
        while (claim := self._shares.first()) is not None:
            if self.granted and self.granted + claim.size > self.budget:
                return
            self._shares.take(claim)
            self._shares.charge(claim, claim.size)
            self.granted += claim.size
            claim.turn.set_result(None)
