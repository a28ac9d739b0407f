"""Reads of usage; every function takes the tenant first and sees nothing else's. A fixed number of queries each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db.models import Count, Exists, Max, OuterRef, QuerySet, Sum

from portal.tenants.models import Tenant
from portal.usage.models import QuotaChange, QuotaNotice, UsageRecord
from portal.usage.periods import Period

SUMS = {name: Sum(name) for name in ("steps", "evaluations", "tokens_sampled", "tokens_trained", "accelerator_seconds")}


@dataclass(frozen=True)
class Totals:
    """What was spent, in all or on one day."""

    steps: int = 0
    evaluations: int = 0
    tokens_sampled: int = 0
    tokens_trained: int = 0
    accelerator_seconds: float = 0.0
    jobs: int = 0

    @property
    def is_any(self) -> bool:
        return bool(self.jobs or self.tokens_sampled or self.accelerator_seconds)


def list_records(tenant: Tenant, period: Period) -> QuerySet[UsageRecord]:
    """By day and job."""
    return UsageRecord.objects.filter(tenant=tenant, day__range=(period.first, period.last))


def list_days(tenant: Tenant, period: Period) -> dict[date, Totals]:
    """Every day of the period, those without usage too, in order."""
    found = _records(tenant, period).values("day").annotate(**SUMS, jobs=Count("job_id", distinct=True))
    rows: list[dict[str, Any]] = [dict(row) for row in found.order_by("day")]
    by_day = {row.pop("day"): Totals(**row) for row in rows}
    return {day: by_day.get(day, Totals()) for day in period.days}


def get_totals(tenant: Tenant, period: Period, days: Mapping[date, Totals] | None = None) -> Totals:
    """Of the whole period; ``days`` where ``list_days`` was asked already. A job that ran on several days counts
    once."""
    days = list_days(tenant, period) if days is None else days
    sums = {name: sum(getattr(day, name) for day in days.values()) for name in SUMS}
    return Totals(**sums, jobs=_records(tenant, period).aggregate(jobs=Count("job_id", distinct=True))["jobs"])


def list_usage_by_job(tenant: Tenant, period: Period) -> QuerySet[Any, Any]:
    """Who spent most accelerator time first; ``job_id`` is None for a job that was removed."""
    rows = _records(tenant, period).values("job_id", "job_name")
    named = rows.annotate(**SUMS, member=Max("member_name"))
    return named.order_by("-accelerator_seconds", "-tokens_sampled", "job_name", "job_id")


def list_usage_by_member(tenant: Tenant, period: Period) -> QuerySet[Any, Any]:
    """Who spent most accelerator time first; ``member_name`` is empty where nobody is known."""
    rows = _records(tenant, period).values("member_id", "member_name")
    counted = rows.annotate(**SUMS, jobs=Count("job_id", distinct=True))
    return counted.order_by("-accelerator_seconds", "-tokens_sampled", "member_name", "member_id")


def list_quota_changes(tenant: Tenant) -> QuerySet[QuotaChange]:
    """Newest first."""
    return QuotaChange.objects.filter(tenant=tenant)


def list_quota_notices(tenant: Tenant, period: Period) -> QuerySet[QuotaNotice]:
    """Newest first, without the warnings of limits that were then reached."""
    notices = QuotaNotice.objects.filter(tenant=tenant, period=period.first)
    reached = notices.filter(level=QuotaNotice.Level.REACHED, kind=OuterRef("kind"), limit=OuterRef("limit"))
    return notices.exclude(Exists(reached), level=QuotaNotice.Level.WARNING)


def find_first_period(tenant: Tenant) -> Period | None:
    """The earliest month with usage."""
    first = UsageRecord.objects.filter(tenant=tenant).order_by("day").values_list("day", flat=True).first()
    return Period(first.replace(day=1)) if first else None


def _records(tenant: Tenant, period: Period) -> QuerySet[UsageRecord]:
    # Without the model's order, which grouping would group by too.
    return UsageRecord.objects.filter(tenant=tenant, day__range=(period.first, period.last)).order_by()
