"""What the pages show of a job's course: the latest rollouts and messages, running time, rewards for sparklines.

Every function takes a job the caller has already found for its tenant, and reads no event above ``last_seq``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from engine.events import TERMINAL_STATUSES
from portal.jobs.models import Job, JobEvent, Status
from portal.progress import selectors as progress
from portal.progress.models import StepRecord
from portal.progress.selectors import TimeLeft

SPARKLINE_STEPS = 60
IDLE = TERMINAL_STATUSES | {Status.QUEUED, Status.PAUSED}
"""While it is in one of these a job does not run."""

MESSAGE_TYPES = ("status", "notice", "evaluation", "reward_error")
"""Events that read as a message, as the adapter of the result does; steps, rollouts and adapter versions are shown as
curves and lists of their own."""


def _events(job: Job, which: Q) -> QuerySet[JobEvent]:
    return JobEvent.objects.filter(which, job=job, seq__lte=job.last_seq)


def rollout_groups(job: Job, *, after: int = 0, limit: int = 12) -> tuple[list[JobEvent], bool]:
    """The latest groups, newest first, only those after seq ``after``; and whether others after it are left out."""
    found = list(_events(job, Q(type="rollout")).filter(seq__gt=after).order_by("-seq")[: limit + 1])
    return found[:limit], len(found) > limit


def messages(job: Job, *, limit: int = 30) -> list[JobEvent]:
    """The latest events that read as a message, newest first.

    Type by type, each from the end of the index: together they would be looked for among all events of the job.
    """
    found = [event for name in MESSAGE_TYPES for event in _latest(job, name, limit)]
    found += [event for event in _latest(job, "adapter", limit) if event.payload.get("final")]
    return sorted([*found, *_changes(job)], key=lambda event: -event.seq)[:limit]


def _latest(job: Job, name: str, limit: int) -> QuerySet[JobEvent]:
    return _events(job, Q(type=name)).order_by("-seq")[:limit]


def _changes(job: Job) -> list[JobEvent]:
    """The ``control`` events that brought other steps or another priority; pauses have events of their own."""
    found, before = [], (job.spec["training"]["steps"], 0)
    for event in _events(job, Q(type="control")).order_by("seq"):
        after = (event.payload["steps"], event.payload["priority"])
        if after != before:
            found.append(event)
        before = after
    return found


def reward_histories(jobs: Iterable[Job]) -> dict[UUID, list[float]]:
    """Mean reward of the last ``SPARKLINE_STEPS`` steps of each job, in order, in one query."""
    histories: dict[UUID, list[float]] = {job.pk: [] for job in jobs}
    recent = Q(pk__in=[])
    for job in jobs:
        recent |= Q(job=job, step__gt=job.step - SPARKLINE_STEPS)
    found = StepRecord.objects.filter(recent).order_by("job", "seq").values_list("job_id", "metrics")
    for job_id, metrics in found:
        histories[job_id].append(metrics.get("reward_mean", 0.0))
    return histories


def elapsed(job: Job, now: datetime | None = None) -> timedelta | None:
    """How long the job has run, pauses left out; None before it first ran."""
    if job.started_at is None:
        return None
    ran, since = timedelta(), None
    for moment, status in _statuses(job):
        ran += moment - since if since else timedelta()
        since = None if status in IDLE else moment
    return ran + ((now or timezone.now()) - since if since else timedelta())


def time_left(job: Job, now: datetime | None = None) -> TimeLeft | None:
    """Estimate for the remaining steps from the pace of those done since the last pause.

    None before there are two of them, while the job is paused or asked to pause or end, and after its end.
    """
    if job.status in IDLE or job.started_at is None or job.wants_paused or job.wants_cancelled:
        return None
    paused_at = max((moment for moment, status in _statuses(job) if status == Status.PAUSED), default=job.started_at)
    return progress.time_left(job, since=paused_at, now=now)


def _statuses(job: Job) -> Iterator[tuple[datetime, str]]:
    for moment, payload in _events(job, Q(type="status")).order_by("seq").values_list("time", "payload"):
        yield moment, payload["status"]
