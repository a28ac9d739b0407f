"""Jobs that a quota paused go on by themselves once it has room again.

Invariants: only a job whose ``QuotaHold`` still stands is resumed, never one a person paused or told to stay paused;
places for active jobs are counted and given under the tenant's lock, which whoever starts or resumes a job holds too,
so no more jobs go on than there are places; the others wait, say so, and follow as places become free. Storage moves
both ways while jobs run: it has to fall below ``WARNING_FRACTION``, or its limit has to change, lest a job go on and
stop with every step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from django.db import transaction
from django.utils import timezone

from portal.audit.services import record_change
from portal.jobs.models import OPEN_STATUSES, Job
from portal.jobs.outbox import send_commands
from portal.live.wake import wake_readers
from portal.tenants.models import Tenant
from portal.usage.meters import PER_PERIOD, STOPPING, WARNING_FRACTION, Meter
from portal.usage.models import QuotaHold, QuotaKind
from portal.usage.wording import NEXT_WHEN_FREE, describe_release, describe_waiting
from portal.webhooks.occurrences import announce_resumed


def resume_held_jobs(*, tenant: Tenant, meters: Sequence[Meter]) -> int:
    """Resume what no quota stands against; how many jobs. Hold the tenant's lock; ``meters`` were read under it."""
    by_kind = {meter.kind: meter for meter in meters}
    if any(by_kind[kind].is_reached for kind in STOPPING):
        return 0
    active = by_kind[QuotaKind.ACTIVE_JOBS]
    assert active.limit is not None
    places = int(active.limit - active.used)
    resumed: list[tuple[Job, Meter]] = []
    waiting: list[Job] = []
    for job in _held_jobs(tenant):
        meter = by_kind[QuotaKind(job.quota_hold.kind)]
        if not _has_room(job.quota_hold, meter):
            continue
        if job.gave_up_its_place:
            if places <= 0:
                waiting += _say_that_it_waits(job, meter, active)
                continue
            places -= 1
        _resume(tenant, job, meter)
        resumed.append((job, meter))
    _tell(tenant, resumed)
    changed = [*(job for job, _ in resumed), *waiting]
    if changed:
        transaction.on_commit(lambda: send_commands(job_ids=[job.pk for job, _ in resumed]))
        transaction.on_commit(lambda: wake_readers(changed))
    return len(resumed)


def _held_jobs(tenant: Tenant) -> list[Job]:
    """Those of the highest priority first, then the oldest."""
    holds = QuotaHold.objects.filter(released_at=None, job__tenant=tenant)
    held = Job.objects.select_for_update().filter(
        pk__in=list(holds.values_list("pk", flat=True)), wants_paused=True, wants_cancelled=False
    )
    jobs = list(held.filter(status__in=OPEN_STATUSES).order_by("pk"))  # locked in the order others lock them
    return sorted(jobs, key=lambda job: (-job.wanted_priority, job.created_at))


def _has_room(hold: QuotaHold, meter: Meter) -> bool:
    if meter.kind in PER_PERIOD or meter.fraction is None:
        return True
    was_changed = hold.limit is not None and meter.limit != hold.limit
    return was_changed or meter.fraction < WARNING_FRACTION


def _resume(tenant: Tenant, job: Job, meter: Meter) -> None:
    cause = describe_release(job.quota_hold, meter)
    job.wants_paused = False
    job.control_revision += 1
    job.control_sent_at = None
    job.save(update_fields=["wants_paused", "control_revision", "control_sent_at"])
    hold = job.quota_hold
    hold.released_at, hold.reason = timezone.now(), f"{cause} The engine is taking the job up again."
    hold.next = "It goes on from its last committed step."
    hold.save(update_fields=["released_at", "reason", "next"])
    record_change(
        tenant=tenant,
        user=None,
        action="job.resumed",
        target=job,
        before={"wants_paused": True},
        after={"wants_paused": False},
        reason=cause,
    )


def _say_that_it_waits(job: Job, meter: Meter, active: Meter) -> list[Job]:
    """The job, where it did not say so before."""
    hold = job.quota_hold
    reason = describe_waiting(describe_release(hold, meter), active)
    if (hold.reason, hold.next) == (reason, NEXT_WHEN_FREE):
        return []
    hold.reason, hold.next = reason, NEXT_WHEN_FREE
    hold.save(update_fields=["reason", "next"])
    return [job]


def _tell(tenant: Tenant, resumed: Sequence[tuple[Job, Meter]]) -> None:
    """One message a quota."""
    by_kind: dict[QuotaKind, list[Job]] = defaultdict(list)
    meters = {meter.kind: meter for _, meter in resumed}
    for job, meter in resumed:
        by_kind[meter.kind].append(job)
    for kind, jobs in by_kind.items():
        announce_resumed(tenant=tenant, meter=meters[kind], jobs=jobs)
