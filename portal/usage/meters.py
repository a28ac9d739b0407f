"""How much of each quota a tenant has used: what checks, meters on pages and the API go by.

A fixed number of queries, whatever the tenant owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, Sum

from portal.adapters.models import AdapterVersion
from portal.datasets.models import DatasetUpload, DatasetVersion
from portal.environments.models import DocumentSet
from portal.jobs.models import OPEN_STATUSES, Job, Status
from portal.rewards.models import RewardTrial
from portal.tenants.models import Tenant
from portal.usage.models import QuotaKind, TenantQuotas, UsageRecord
from portal.usage.periods import Period, today_until

WARNING_FRACTION = 0.8
PER_PERIOD = (QuotaKind.SAMPLED_TOKENS, QuotaKind.TRAINED_TOKENS, QuotaKind.ACCELERATOR_SECONDS)
"""Start anew every month."""
STOPPING = (*PER_PERIOD, QuotaKind.STORAGE_BYTES)
"""Grow while jobs run: at the limit the tenant's jobs are paused."""


@dataclass(frozen=True)
class Meter:
    """One quota of a tenant as it stands."""

    kind: QuotaKind
    used: float
    limit: float | None
    """None: not limited."""
    resets_at: datetime | None
    """When it starts anew; None for what does not."""

    @property
    def label(self) -> str:
        return str(self.kind.label)

    @property
    def is_bytes(self) -> bool:
        return self.kind == QuotaKind.STORAGE_BYTES

    @property
    def fraction(self) -> float | None:
        """Used of the limit, 1 where it is reached; None without a limit."""
        if self.limit is None:
            return None
        return self.used / self.limit if self.limit else 1.0

    @property
    def percent(self) -> int | None:
        """Whole percent, never 100 before the limit is reached."""
        return None if self.fraction is None else int(100 * self.fraction)

    @property
    def is_reached(self) -> bool:
        return self.fraction is not None and self.fraction >= 1

    @property
    def level(self) -> str:
        """``unlimited``, ``ok``, ``warning`` (from 80 %) or ``reached``."""
        if self.fraction is None:
            return "unlimited"
        if self.is_reached:
            return "reached"
        return "warning" if self.fraction >= WARNING_FRACTION else "ok"


def list_limited_meters(tenant: Tenant) -> list[Meter]:
    """Those with a limit, for the home page; reward tests only where they come near it."""
    limited = [meter for meter in list_meters(tenant) if meter.limit is not None]
    return [meter for meter in limited if meter.kind != QuotaKind.REWARD_TRIALS or meter.level != "ok"]


def get_quotas(tenant: Tenant) -> TenantQuotas:
    """The tenant's limits; without any where no admin has set one."""
    return TenantQuotas.objects.filter(tenant=tenant).first() or TenantQuotas(tenant=tenant)


def list_meters(tenant: Tenant, period: Period | None = None) -> list[Meter]:
    """Every quota, in the order of ``QuotaKind``; those per month for ``period``, the current one by default."""
    period = period or Period.of()
    quotas = get_quotas(tenant)
    active, queued = count_jobs(tenant)
    spent = UsageRecord.objects.filter(tenant=tenant, day__range=(period.first, period.last)).aggregate(
        sampled=Sum("tokens_sampled"), trained=Sum("tokens_trained"), seconds=Sum("accelerator_seconds")
    )
    found: dict[QuotaKind, tuple[float, float | None]] = {
        QuotaKind.ACTIVE_JOBS: (active, tenant.max_active_jobs),
        QuotaKind.QUEUED_JOBS: (queued, quotas.max_queued_jobs),
        QuotaKind.SAMPLED_TOKENS: (spent["sampled"] or 0, quotas.max_sampled_tokens),
        QuotaKind.TRAINED_TOKENS: (spent["trained"] or 0, quotas.max_trained_tokens),
        QuotaKind.ACCELERATOR_SECONDS: (spent["seconds"] or 0, quotas.max_accelerator_seconds),
        QuotaKind.STORAGE_BYTES: (sum_storage(tenant), quotas.max_storage_bytes),
    }
    meters = [
        Meter(kind, used, limit, period.resets_at if kind in PER_PERIOD else None)
        for kind, (used, limit) in found.items()
    ]
    return [*meters, get_trial_meter(tenant)]


def get_trial_meter(tenant: Tenant) -> Meter:
    """Reward trials begun today (UTC). They are kept for longer than a day, so counting them is enough."""
    today, tomorrow = today_until()
    begun = RewardTrial.objects.filter(tenant=tenant, created_at__gte=today).count()
    return Meter(QuotaKind.REWARD_TRIALS, begun, tenant.max_reward_trials_per_day, tomorrow)


def count_jobs(tenant: Tenant) -> tuple[int, int]:
    """Active jobs, as ``count_active_jobs`` counts them, and those among them that wait for a place."""
    waiting = Q(status=Status.QUEUED)
    paused = Q(status=Status.PAUSED, wants_paused=True)
    jobs = Job.objects.filter(tenant=tenant, status__in=OPEN_STATUSES)
    counts = jobs.aggregate(active=Count("pk", filter=~paused), queued=Count("pk", filter=waiting))
    return counts["active"], counts["queued"]


def sum_storage(tenant: Tenant) -> int:
    """Bytes of the tenant's files: datasets (the same rows once), unfinished uploads, documents, and adapters not yet
    removed."""
    files = DatasetVersion.objects.filter(dataset__tenant=tenant).values("sha256", "size_bytes").distinct()
    drafts = DatasetUpload.objects.filter(tenant=tenant, version=None)
    documents = DocumentSet.objects.filter(tenant=tenant)
    adapters = AdapterVersion.objects.filter(tenant=tenant, removed=False).order_by()
    stored = (files, drafts, documents, adapters)
    return sum(each.aggregate(total=Sum("size_bytes"))["total"] or 0 for each in stored)


def sum_reserved(tenant: Tenant) -> int:
    """Bytes that pieces of uploads under way may still bring: nobody else may have them, but they are not used yet."""
    uploads = DatasetUpload.objects.filter(tenant=tenant, version=None)
    return uploads.aggregate(total=Sum("reserved_bytes"))["total"] or 0
