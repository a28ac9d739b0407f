"""What happens while jobs spend: a warning at 80 % of a quota, at 100 % the tenant's jobs are paused, and they go on
once there is room again (``portal.usage.resumption``).

Invariants: each notice is given once for a quota, level, month and limit, however often this runs; a job is paused by
the same means as by a member (one revision of its control), so it keeps every committed step and its adapters; what a
step in flight still spends is counted after the stop. Runs after each ingestion and, in case that was cut short, every
minute.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from portal.audit.services import record_change
from portal.jobs.models import OPEN_STATUSES, Job
from portal.jobs.outbox import send_commands
from portal.live.wake import wake_readers
from portal.tenants.models import Tenant
from portal.usage.meters import STOPPING, WARNING_FRACTION, Meter, list_meters
from portal.usage.models import QuotaHold, QuotaKind, QuotaNotice
from portal.usage.periods import Period
from portal.usage.resumption import resume_held_jobs
from portal.usage.wording import describe_next, describe_reached
from portal.webhooks.occurrences import announce_quota

LIMITED = (
    Q(quotas__max_sampled_tokens__isnull=False)
    | Q(quotas__max_trained_tokens__isnull=False)
    | Q(quotas__max_accelerator_seconds__isnull=False)
    | Q(quotas__max_storage_bytes__isnull=False)
)
"""Tenants with a limit that running jobs may reach."""


def enforce_quotas(*, tenant_ids: Iterable[uuid.UUID] | None = None) -> int:
    """Warn and stop the tenants, all by default, that have come to a limit, and resume what a quota had paused where
    it has room again; how many jobs were paused."""
    held = QuotaHold.objects.filter(
        released_at=None, job__tenant=OuterRef("pk"), job__wants_paused=True, job__wants_cancelled=False
    ).filter(job__status__in=OPEN_STATUSES)
    tenants = Tenant.objects.annotate(has_held_jobs=Exists(held)).filter(LIMITED | Q(has_held_jobs=True))
    if tenant_ids is not None:
        tenants = tenants.filter(pk__in=set(tenant_ids))
    return sum(_enforce(tenant) for tenant in tenants if tenant.has_held_jobs or _pressing(list_meters(tenant)))


def _pressing(meters: list[Meter]) -> list[Meter]:
    return [
        meter
        for meter in meters
        if meter.kind in STOPPING and meter.fraction is not None and meter.fraction >= WARNING_FRACTION
    ]


def _enforce(tenant: Tenant) -> int:
    with transaction.atomic():
        # The tenant's lock comes first, as wherever a job's control is changed.
        tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        meters = list_meters(tenant)
        pressing = _pressing(meters)
        for meter in pressing:
            _give_notice(tenant, meter, QuotaNotice.Level.WARNING)
            if meter.is_reached:
                _give_notice(tenant, meter, QuotaNotice.Level.REACHED)
        reached = next((meter for meter in pressing if meter.is_reached), None)
        if reached is not None:
            _renew_holds(tenant, reached, {meter.kind for meter in pressing if meter.is_reached})
            return _pause_jobs(tenant, reached)
        resume_held_jobs(tenant=tenant, meters=meters)
        return 0


def _give_notice(tenant: Tenant, meter: Meter, level: str) -> None:
    assert meter.limit is not None
    notice, created = QuotaNotice.objects.get_or_create(
        tenant=tenant,
        kind=meter.kind,
        level=level,
        period=Period.of().first,
        limit=meter.limit,
        defaults={"used": meter.used},
    )
    # Whoever goes past both at once hears only of the one that matters.
    if created and (level == QuotaNotice.Level.REACHED or not meter.is_reached):
        announce_quota(tenant=tenant, notice_id=notice.pk, level=level, meter=meter)


def _renew_holds(tenant: Tenant, meter: Meter, reached: set[QuotaKind]) -> None:
    """What was held for a quota that has room again is held for one that has not."""
    holds = QuotaHold.objects.filter(job__tenant=tenant, job__wants_paused=True, released_at=None)
    holds.exclude(kind__in=reached).update(**_hold_for(meter))


def _hold_for(meter: Meter) -> dict[str, Any]:
    """The fields of a hold."""
    reason, following = describe_reached(meter), describe_next(meter)
    return {"kind": meter.kind, "reason": reason, "next": following, "limit": meter.limit, "released_at": None}


def _pause_jobs(tenant: Tenant, meter: Meter) -> int:
    going = Job.objects.select_for_update().filter(tenant=tenant, wants_paused=False, wants_cancelled=False)
    jobs = list(going.filter(status__in=OPEN_STATUSES).order_by("pk"))
    if not jobs:
        return 0
    for job in jobs:
        job.wants_paused = True
        job.control_revision += 1
        job.control_sent_at = None
        job.save(update_fields=["wants_paused", "control_revision", "control_sent_at"])
        QuotaHold.objects.update_or_create(job=job, defaults=_hold_for(meter))
        record_change(
            tenant=tenant,
            user=None,
            action="job.paused",
            target=job,
            before={"wants_paused": False},
            after={"wants_paused": True},
            reason=describe_reached(meter),
        )
    transaction.on_commit(lambda: send_commands(job_ids=[job.pk for job in jobs]))
    transaction.on_commit(lambda: wake_readers(jobs))
    return len(jobs)
