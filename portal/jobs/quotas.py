"""What a tenant may still start: every quota as it would stand with one more job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from portal.tenants.models import Tenant
from portal.usage.limits import ROOM_HINT
from portal.usage.meters import Meter, get_quotas, list_meters
from portal.usage.models import QuotaKind
from portal.usage.wording import hint_of


@dataclass(frozen=True)
class Quota:
    """One limit of a tenant, before and after one more job."""

    name: str
    limit: float
    used: float
    needed: float
    """What the new job takes of it; what it is expected to spend, where it is not known beforehand."""
    hint: str
    """What to do where it does not fit."""
    is_spent: bool = False
    """Jobs spend it while they run: one that is expected to need more than is left may start, and is paused there."""

    @property
    def left(self) -> float:
        """After the new job; negative where it does not fit."""
        return self.limit - self.used - self.needed

    @property
    def is_used_up(self) -> bool:
        return self.used >= self.limit

    @property
    def fits(self) -> bool:
        return self.left >= 0 and not (self.is_spent and self.is_used_up)

    @property
    def blocks(self) -> bool:
        """A job must not start."""
        return not self.fits and (self.is_used_up or not self.is_spent)


def quotas_after(tenant: Tenant, *, steps: int, expected: Mapping[QuotaKind, float | None]) -> list[Quota]:
    """The tenant's limits as they would stand with one more job of so many steps.

    ``expected`` says what it will spend; what is None or left out is not known and counts as nothing.
    """
    return [
        *_of_one_job(tenant, steps),
        *(
            _after(meter, expected)
            for meter in list_meters(tenant)
            if meter.limit is not None and meter.kind != QuotaKind.REWARD_TRIALS
        ),
    ]


def _of_one_job(tenant: Tenant, steps: int) -> Iterator[Quota]:
    limit = get_quotas(tenant).max_steps_per_job
    if limit is not None:
        hint = "Choose fewer steps, or ask the operator for a higher limit."
        yield Quota(name="Steps of one job", limit=limit, used=0, needed=steps, hint=hint)


def _after(meter: Meter, expected: Mapping[QuotaKind, float | None]) -> Quota:
    assert meter.limit is not None
    is_counted = meter.kind in (QuotaKind.ACTIVE_JOBS, QuotaKind.QUEUED_JOBS)
    return Quota(
        name=meter.label,
        limit=meter.limit,
        used=meter.used,
        needed=1 if is_counted else expected.get(meter.kind) or 0,
        hint=ROOM_HINT if is_counted else hint_of(meter),
        is_spent=not is_counted,
    )
