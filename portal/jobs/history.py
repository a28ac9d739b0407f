"""What the pages show of a job's course: curves, evaluations, the latest rollouts and messages.

Every function takes a job the caller has already found for its tenant, and reads no event above ``last_seq``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.jobs.models import Job, JobEvent

MAX_POINTS = 1000
"""Of a curve: more cannot be told apart on a screen."""
SPARKLINE_STEPS = 60

MESSAGES = Q(type__in=("status", "notice", "evaluation")) | Q(type="adapter", payload__final=True)
"""Events that read as a message; steps, rollouts and adapter versions are shown as curves and lists of their own."""


def _events(job: Job, which: Q) -> QuerySet[JobEvent]:
    return JobEvent.objects.filter(which, job=job, seq__lte=job.last_seq)


def step_points(job: Job) -> list[dict[str, Any]]:
    """``{"step", "metrics"}`` in order, thinned evenly to about ``MAX_POINTS``; the last step is always among them."""
    stride = max(1, job.step // MAX_POINTS)
    payloads = _events(job, Q(type="step")).order_by("seq").values_list("payload", flat=True)
    return [
        {"step": payload["step"], "metrics": payload["metrics"]}
        for payload in payloads.iterator()
        if payload["step"] % stride == 0 or payload["step"] == job.step
    ]


def evaluations(job: Job) -> list[dict[str, Any]]:
    """Payloads of the held-out evaluations, in order."""
    return list(_events(job, Q(type="evaluation")).order_by("seq").values_list("payload", flat=True))


def rollout_groups(job: Job, *, after: int = 0, limit: int = 12) -> list[JobEvent]:
    """The latest groups, newest first, only those after seq ``after``."""
    return list(_events(job, Q(type="rollout")).filter(seq__gt=after).order_by("-seq")[:limit])


def messages(job: Job, *, limit: int = 30) -> list[JobEvent]:
    """The latest events that read as a message, newest first."""
    return list(_events(job, MESSAGES).order_by("-seq")[:limit])


def reward_histories(jobs: Iterable[Job]) -> dict[UUID, list[float]]:
    """Mean reward of the last ``SPARKLINE_STEPS`` steps of each job, in order, in one query."""
    histories: dict[UUID, list[float]] = {job.pk: [] for job in jobs}
    recent = Q(pk__in=[])
    for job in jobs:
        recent |= Q(job=job, seq__lte=job.last_seq, payload__step__gt=job.step - SPARKLINE_STEPS)
    found = JobEvent.objects.filter(recent, type="step").order_by("job", "seq").values_list("job_id", "payload")
    for job_id, payload in found:
        histories[job_id].append(payload["metrics"].get("reward_mean", 0.0))
    return histories


def elapsed(job: Job) -> timedelta | None:
    """Time since the job first ran, up to its end."""
    if job.started_at is None:
        return None
    return (job.finished_at or timezone.now()) - job.started_at


def seconds_left(job: Job, now: datetime | None = None) -> float | None:
    """Estimate for the remaining steps from the pace of those done; None before the second step or after the end."""
    if job.is_finished or job.step < 2 or job.started_at is None:
        return None
    times = list(_events(job, Q(type="step")).order_by("-seq").values_list("time", flat=True)[:10])
    if len(times) < 2:
        return None
    pace = (times[0] - times[-1]).total_seconds() / (len(times) - 1)
    since_last = ((now or timezone.now()) - times[0]).total_seconds()
    return pace * (job.steps - job.step) - min(since_last, pace)
