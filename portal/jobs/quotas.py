"""What a tenant may still start: the one place that knows the limits a new job runs against."""

from __future__ import annotations

from dataclasses import dataclass

from portal.jobs.selectors import count_active_jobs
from portal.tenants.models import Tenant


@dataclass(frozen=True)
class Quota:
    """One limit of a tenant, before and after one more job."""

    name: str
    limit: float
    used: float
    needed: float
    """What the new job takes of it."""
    hint: str
    """What to do where it does not fit."""

    @property
    def left(self) -> float:
        """After the new job; negative where it does not fit."""
        return self.limit - self.used - self.needed

    @property
    def fits(self) -> bool:
        return self.left >= 0


def quotas_after(tenant: Tenant) -> list[Quota]:
    """The tenant's limits as they would stand with one more job."""
    return [
        Quota(
            name="Active jobs",
            limit=tenant.max_active_jobs,
            used=count_active_jobs(tenant),
            needed=1,
            hint="Wait until one finishes, pause or cancel one, or ask the operator for a higher limit.",
        )
    ]
