"""Reads of jobs and their events; every function takes the tenant first and sees nothing else's."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import Http404

from portal.jobs.models import OPEN_STATUSES, Job, JobEvent, Status
from portal.tenants.models import Tenant


def list_jobs(tenant: Tenant) -> QuerySet[Job]:
    """Newest first."""
    return Job.objects.filter(tenant=tenant).select_related(
        "base_model",
        "dataset_version__dataset",
        "reward_version__reward_function",
        "created_by",
        "start_from__job",
        "quota_hold",
    )


def count_active_jobs(tenant: Tenant) -> int:
    """Jobs that count towards ``max_active_jobs``: those that have, or wait for, a place in rollout and trainer.

    A paused job gave up its place, so that it can make room for another; one that is to go on counts at once.
    """
    jobs = Job.objects.filter(tenant=tenant, status__in=OPEN_STATUSES)
    return jobs.exclude(status=Status.PAUSED, wants_paused=True).count()


def get_job(tenant: Tenant, job_id: uuid.UUID) -> Job:
    """Raises Http404 where the tenant has no such job."""
    job = list_jobs(tenant).filter(pk=job_id).first()
    if job is None:
        raise Http404("No such job.")
    return job


def list_events(
    tenant: Tenant,
    job_id: uuid.UUID,
    *,
    after: int = 0,
    limit: int = 500,
    types: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
) -> list[JobEvent]:
    """The job's events with ``after < seq <= last_seq``, in order, at most ``limit``; Http404 for a foreign job."""
    return list(_select_events(get_job(tenant, job_id), after, types, exclude)[:limit])


def _select_events(job: Job, after: int, types: Iterable[str] | None, exclude: Iterable[str]) -> QuerySet[JobEvent]:
    events = JobEvent.objects.filter(job=job, seq__gt=after, seq__lte=job.last_seq).order_by("seq")
    if types is not None:
        events = events.filter(type__in=list(types))
    return events.exclude(type__in=list(exclude))


@dataclass(frozen=True)
class News:
    """What a reader with a cursor has not seen yet."""

    job: Job
    events: list[dict[str, Any]]
    """As ``render_event`` gives them."""
    last_seq: int
    """The reader's next cursor: nothing the reader wants lies between it and the last event given."""


def read_news(
    tenant: Tenant,
    job_id: uuid.UUID,
    *,
    after: int,
    limit: int,
    types: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
) -> News:
    """The next ``limit`` events after ``after`` and where to go on; raises Http404 for a foreign job."""
    job = get_job(tenant, job_id)
    found = [render_event(event) for event in _select_events(job, after, types, exclude)[:limit]]
    last_seq = found[-1]["seq"] if len(found) == limit else max(after, job.last_seq)
    return News(job=job, events=found, last_seq=last_seq)


def render_event(event: JobEvent) -> dict[str, Any]:
    """An event as the WebSocket and the API give it."""
    return {"seq": event.seq, "type": event.type, "time": event.time.timestamp(), "payload": event.payload}


def summarize_job(job: Job) -> dict[str, Any]:
    """A job's state as the WebSocket gives it, for the list and the head of the job page."""
    return {
        "id": str(job.pk),
        "name": job.name,
        "status": job.status,
        "status_label": job.state_label,
        "transition": job.transition.name if job.transition else "",
        "reason": job.state_reason,
        "next": job.state_next,
        "finished": job.is_finished,
        "step": job.step,
        "steps": job.steps,
        "priority": job.priority,
        "control": summarize_control(job),
        "metrics": job.metrics,
        "base_accuracy": job.base_accuracy,
        "accuracy": job.accuracy,
        "last_accuracy": job.last_accuracy,
        "last_seq": job.last_seq,
        "created_at": job.created_at.isoformat(),
        "started_at": job.started_at.isoformat() if job.started_at else None,
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
    }


def summarize_control(job: Job) -> dict[str, Any]:
    """What the tenant wants of the job; the engine goes by it once ``applied_revision`` has reached ``revision``."""
    return {
        "revision": job.control_revision,
        "applied_revision": job.applied_revision,
        "paused": job.wants_paused,
        "cancelled": job.wants_cancelled,
        "priority": job.wanted_priority,
        "steps": job.wanted_steps,
    }
