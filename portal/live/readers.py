"""What a stream has not sent yet: of one job, or of all jobs of a tenant.

Invariant: a reader's cursor names exactly what was sent, so whoever comes back with the last one gets every later
event, each once, those of one job in order. There is no order of events across jobs: a job's events become visible in
the order of its seq, whatever other jobs do; so the cursor of a tenant names a seq for each job that may go on.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from portal.jobs.models import OPEN_STATUSES, Job
from portal.jobs.selectors import get_job, read_news
from portal.live.wake import job_group, tenant_group
from portal.tenants.models import Tenant

PAGE_EVENTS = 200
OVERLAP = timedelta(minutes=1)
"""A job created so long ago is visible by now, whatever transaction created it."""
CURSOR = re.compile(r"(\d{1,12}):((?:[0-9a-f]{32}\.\d{1,10}(?:,(?=.)|$))*)")


@dataclass(frozen=True)
class Message:
    """One event of a stream."""

    id: str
    """The cursor after it."""
    event: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """What came next. With ``more`` ask again at once; with ``finished`` nothing will ever follow."""

    messages: list[Message]
    more: bool = False
    finished: bool = False


class JobReader:
    """Of one job after ``after``; raises Http404 where the tenant has none such."""

    def __init__(
        self, tenant: Tenant, job_id: uuid.UUID, *, after: int, types: Iterable[str] | None, exclude: Iterable[str]
    ) -> None:
        self.tenant, self.job_id, self.after = tenant, get_job(tenant, job_id).pk, after
        self.types, self.exclude = types, exclude
        self.group = job_group(self.job_id)

    def read(self) -> Batch:
        news = read_news(
            self.tenant, self.job_id, after=self.after, limit=PAGE_EVENTS, types=self.types, exclude=self.exclude
        )
        self.after = news.last_seq
        messages = [_message(str(event["seq"]), self.job_id, event) for event in news.events]
        behind = news.last_seq < news.job.last_seq
        return Batch(messages, more=behind, finished=news.job.is_finished and not behind)


class TenantReader:
    """Of all jobs of a tenant after ``cursor``; without one, from now on. Raises ValueError for what is no cursor."""

    def __init__(self, tenant: Tenant, *, cursor: str, types: Iterable[str] | None, exclude: Iterable[str]) -> None:
        self.tenant, self.types, self.exclude = tenant, types, exclude
        self.group = tenant_group(tenant.pk)
        if cursor:
            self.since, self.sent = _parse(cursor)
        else:
            self.since, self.sent = timezone.now() - OVERLAP, {}
            self.sent = {job.pk: job.last_seq for job in self._open_jobs()}

    def read(self) -> Batch:
        now = timezone.now()
        jobs = list(self._open_jobs())
        messages, more = [], False
        for job in jobs:
            if self.sent.setdefault(job.pk, 0) < job.last_seq:
                found, behind = self._read_job(job)
                messages += found
                more = more or behind
        self.since = max(self.since, now - OVERLAP)
        # What is sent in full and can be found by neither its state nor its age needs no place in the cursor.
        for job in jobs:
            old, whole = job.created_at <= self.since, self.sent[job.pk] >= job.last_seq
            if job.is_finished and old and whole:
                del self.sent[job.pk]
        return Batch(messages, more=more)

    def _open_jobs(self) -> Iterator[Job]:
        """Those that may have something the reader has not sent, oldest first."""
        unfinished = Q(status__in=OPEN_STATUSES)
        jobs = Job.objects.filter(tenant=self.tenant).filter(
            unfinished | Q(created_at__gt=self.since) | Q(pk__in=list(self.sent))
        )
        return jobs.only("pk", "last_seq", "status", "created_at").order_by("created_at", "pk").iterator()

    def _read_job(self, job: Job) -> tuple[list[Message], bool]:
        news = read_news(
            self.tenant,
            job.pk,
            after=self.sent[job.pk],
            limit=PAGE_EVENTS,
            types=self.types,
            exclude=self.exclude,
        )
        messages = []
        for event in news.events:
            self.sent[job.pk] = event["seq"]
            messages.append(_message(self.cursor, job.pk, event))
        self.sent[job.pk] = news.last_seq
        return messages, news.last_seq < news.job.last_seq

    @property
    def cursor(self) -> str:
        """``<seconds since the epoch>:<job id>.<seq>,...``"""
        return f"{int(self.since.timestamp())}:" + ",".join(f"{pk.hex}.{seq}" for pk, seq in self.sent.items())


def _parse(cursor: str) -> tuple[datetime, dict[uuid.UUID, int]]:
    match = CURSOR.fullmatch(cursor)
    if match is None:
        raise ValueError("is none of this stream's cursors")
    pairs = [pair.split(".") for pair in match[2].split(",") if pair]
    try:
        since = datetime.fromtimestamp(int(match[1]), tz=UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError("is none of this stream's cursors") from None
    return since, {uuid.UUID(job_id): int(seq) for job_id, seq in pairs}


def _message(cursor: str, job_id: uuid.UUID, event: dict[str, Any]) -> Message:
    return Message(id=cursor, event=event["type"], data={"job_id": str(job_id), **event})
