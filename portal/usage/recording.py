"""The projection of a job's events onto ``UsageRecord``.

Invariant: called with each event once, in the transaction that moves the job's ``last_seq`` past it, under the job's
lock; so repeats, cuts and shuffles of ingestion leave no trace, and a rebuild from all events gives the same records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date
from typing import Any, Protocol

from django.db import transaction

from portal.bulk import update_rows
from portal.jobs.models import Job, JobEvent
from portal.usage.models import UsageRecord

COUNTED_TYPES = ("step", "evaluation", "span")


class EventLike(Protocol):
    """What is read of an event; a row of ``JobEvent``, or of its state in a migration."""

    @property
    def type(self) -> str: ...
    @property
    def time(self) -> Any: ...
    @property
    def payload(self) -> Any: ...


@dataclass
class Spent:
    """Of one job on one day."""

    steps: int = 0
    evaluations: int = 0
    tokens_sampled: int = 0
    tokens_trained: int = 0
    accelerator_seconds: float = 0.0

    def __bool__(self) -> bool:
        return any(asdict(self).values())

    def add_event(self, event: EventLike) -> None:
        """Count one event. A step's accelerator time includes the evaluations since the step before."""
        match event.type:
            case "step":
                metrics = event.payload["metrics"]
                self.steps += 1
                self.tokens_sampled += _amount(metrics, "tokens_sampled")
                self.tokens_trained += _amount(metrics, "tokens_trained")
                self.accelerator_seconds += max(0.0, float(metrics.get("accelerator_seconds", 0.0)))
            case "evaluation":
                self.evaluations += 1
            case "span" if event.payload["stage"] == "evaluate":
                self.tokens_sampled += max(0, int(event.payload.get("tokens", 0)))


def _amount(metrics: dict[str, float], name: str) -> int:
    return max(0, round(metrics.get(name, 0)))


def sum_events(events: Iterable[EventLike]) -> dict[date, Spent]:
    """What these events say was spent, by day; days on which nothing was are left out."""
    days: dict[date, Spent] = defaultdict(Spent)
    for event in events:
        if event.type in COUNTED_TYPES:
            days[event.time.astimezone(UTC).date()].add_event(event)
    return {day: spent for day, spent in days.items() if spent}


def record_usage(*, spent: Iterable[tuple[Job, dict[date, Spent]]]) -> None:
    """Add what new events of jobs say; the caller holds the jobs' locks."""
    added = [(job, day, amounts) for job, days in spent for day, amounts in days.items()]
    if not added:
        return
    jobs, days_of_any = {job.pk for job, _, _ in added}, {day for _, day, _ in added}
    records = UsageRecord.objects.filter(job__in=jobs, day__in=days_of_any).order_by()
    known = {(record.job_id, record.day): record for record in records}
    changed = []
    for job, day, amounts in added:
        record = known.get((job.pk, day))
        if record is None:
            _start_record(job, day, amounts)
            continue
        for name, amount in asdict(amounts).items():
            setattr(record, name, getattr(record, name) + amount)
        changed.append(record)
    update_rows(UsageRecord, list(asdict(Spent())), changed)


def _start_record(job: Job, day: date, spent: Spent) -> None:
    member = job.created_by
    UsageRecord.objects.create(
        tenant_id=job.tenant_id,
        job=job,
        job_name=job.name,
        member=member,
        member_name=member.get_username() if member else "",
        day=day,
        **asdict(spent),
    )


def rebuild_usage(*, job_id: Any) -> bool:
    """Count the job's events anew; False where its records said the same already."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job_id)
        events = JobEvent.objects.filter(job=job, type__in=COUNTED_TYPES, seq__lte=job.last_seq).order_by("seq")
        days = sum_events(events.iterator(chunk_size=500))
        records = UsageRecord.objects.filter(job=job)
        if _rounded({record.day: _spent(record) for record in records}) == _rounded(days):
            return False
        records.delete()
        record_usage(spent=[(job, days)])
    return True


def _spent(record: UsageRecord) -> Spent:
    return Spent(**{name: getattr(record, name) for name in asdict(Spent())})


def _rounded(days: dict[date, Spent]) -> dict[date, Spent]:
    """Sums of seconds differ in their last digits by how the events came in batches."""
    return {day: replace(spent, accelerator_seconds=round(spent.accelerator_seconds, 3)) for day, spent in days.items()}
