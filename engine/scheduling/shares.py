"""Whose turn it is: virtual time of tenants and of each tenant's jobs.

Start-time fair queueing (Goyal, Vin, Chen 1996): whoever has used the least for its weight goes next, first among
tenants, then among the tenant's jobs of the highest priority. What "used" counts is the caller's:
seconds, or tokens.

Invariants: shares follow weights whatever the number and size of a tenant's requests; one that was idle starts at the
current virtual time, so idling earns no credit; priority moves a job only among its own tenant's.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.spec import TenantShare

HALF_LIFE = 300.0
"""Seconds after which what was used counts half in what people are shown."""


@dataclass
class Claim:
    """One request that waits for its turn."""

    tenant_id: str
    job_id: str
    weight: float
    priority: int
    size: float
    """What it will use, as far as known."""
    order: int
    turn: asyncio.Future[Any]


@dataclass
class _Share:
    """What a tenant and its jobs have used, and the tenant's waiting claims."""

    used: float = 0.0
    jobs: dict[str, float] = field(default_factory=dict)
    weight: float = 1.0
    recent: float = 0.0
    """What was used, older use counted less; as of ``settled``. Only shown."""
    settled: float = 0.0
    waiting: dict[int, Claim] = field(default_factory=dict)
    """By their order."""
    best: Claim | None = None
    """The first of them, where it is known: it is looked for again only after something of this tenant has changed."""

    def first(self) -> Claim | None:
        if self.best is None or self.best.turn.done():
            claims = (claim for claim in self.waiting.values() if not claim.turn.done())
            self.best = min(claims, key=self.rank, default=None)
        return self.best

    def settle(self, now: float) -> None:
        self.recent *= 0.5 ** ((now - self.settled) / HALF_LIFE)
        self.settled = now

    def rank(self, claim: Claim) -> tuple[float, int, float, int]:
        # A job that was forgotten may still have claims, whose callers are about to be cancelled.
        return self.used, -claim.priority, self.jobs.get(claim.job_id, 0.0), claim.order


class FairShares:
    """The waiting claims and what each tenant and job has used.

    Finding the first costs a comparison for each tenant that waits, however many claims each of them has.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shares: dict[str, _Share] = {}
        self._waiting: dict[str, _Share] = {}
        """Those of tenants with claims."""
        self._virtual_time = 0.0
        self._orders = itertools.count()

    def __len__(self) -> int:
        return sum(len(share.waiting) for share in self._waiting.values())

    def add(self, tenant_id: str, job_id: str, *, weight: float, priority: int, size: float) -> Claim:
        """Queue a claim; its ``turn`` is resolved by whoever takes it."""
        turn: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        claim = Claim(tenant_id, job_id, weight, priority, size, next(self._orders), turn)
        share = self._shares.setdefault(tenant_id, _Share())
        share.weight = weight
        if not share.waiting:
            share.used = max(share.used, self._virtual_time)
        if job_id not in share.jobs:
            share.jobs[job_id] = min(share.jobs.values(), default=0.0)
        share.waiting[claim.order] = claim
        share.best = None
        self._waiting[tenant_id] = share
        return claim

    def first(self) -> Claim | None:
        """The claim whose turn is next; one whose caller was cancelled, but has not run since, is passed over."""
        firsts = [(share.rank(claim), claim) for share in self._waiting.values() if (claim := share.first())]
        return min(firsts, key=lambda ranked: ranked[0], default=(None, None))[1]

    def take(self, claim: Claim) -> None:
        """Take the first claim off the queue."""
        self.drop(claim)
        self._virtual_time = max(self._virtual_time, self._shares[claim.tenant_id].used)

    def drop(self, claim: Claim) -> None:
        """Its caller went away. Idempotent."""
        share = self._shares[claim.tenant_id]
        share.best = None
        if share.waiting.pop(claim.order, None) and not share.waiting:
            del self._waiting[claim.tenant_id]

    def charge(self, claim: Claim, amount: float) -> None:
        """Count ``amount`` as used by the claim's tenant and job; negative to correct an estimate."""
        share = self._shares[claim.tenant_id]
        share.best = None
        share.used += amount / claim.weight
        share.settle(self._clock())
        share.recent += amount
        share.jobs[claim.job_id] = share.jobs.get(claim.job_id, 0.0) + amount

    def forget(self, tenant_id: str, job_id: str) -> None:
        """A job ended, or is paused: drop its record. Claims it still has are served as any other."""
        share = self._shares.get(tenant_id)
        if share is not None:
            share.jobs.pop(job_id, None)

    def describe(self) -> list[TenantShare]:
        """For a person: the tenants that wait or have used something lately. It is no part of whose turn it is."""
        found = []
        for tenant_id, share in self._shares.items():
            share.settle(self._clock())
            if share.waiting or share.recent > 1e-3:
                used = max(0.0, share.recent)  # a corrected estimate may leave a little less than nothing
                found.append(
                    TenantShare(tenant_id=tenant_id, weight=share.weight, used=used, waiting=len(share.waiting))
                )
        return found
