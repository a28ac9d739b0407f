"""What a job's events say about the job: the fields of ``Job`` under "projection", its adapter versions, what was
measured of it (``portal.progress``) and its rollouts (``portal.rollouts``).

Invariant: a pure function of the events 1..``last_seq`` in order; how they were batched or repeated leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.events import TERMINAL_STATUSES, AdapterPublished, AdapterRemoved
from portal.adapters.services import record_published, record_removed
from portal.jobs.models import Job, JobEvent, Status
from portal.progress.services import forget_progress, record_evaluations, record_steps
from portal.rollouts.services import forget_rollouts, record_groups

PROJECTED_FIELDS = [
    "last_seq",
    "status",
    "reason",
    "next",
    "step",
    "steps",
    "priority",
    "applied_revision",
    "metrics",
    "base_accuracy",
    "accuracy",
    "started_at",
    "finished_at",
]


CHUNK = 500
"""Events held in memory at once."""


def advance_job(job: Job) -> bool:
    """Apply the stored events that follow ``job.last_seq`` without a gap and save; False where there are none."""
    before = job.last_seq
    chunk: list[JobEvent] = []
    for event in JobEvent.objects.filter(job=job, seq__gt=before).order_by("seq").iterator(chunk_size=CHUNK):
        if event.seq != job.last_seq + 1:
            break
        _apply(job, event)
        job.last_seq = event.seq
        chunk.append(event)
        if len(chunk) == CHUNK:
            _record(job, chunk)
            chunk = []
    if job.last_seq == before:
        return False
    _record(job, chunk)
    job.save(update_fields=PROJECTED_FIELDS)
    return True


def _record(job: Job, events: Iterable[JobEvent]) -> None:
    """Put events into the tables made for reading."""
    of_type: dict[str, list[JobEvent]] = {"step": [], "evaluation": [], "rollout": []}
    for event in events:
        of_type.get(event.type, []).append(event)
    record_steps(job=job, events=of_type["step"])
    record_evaluations(job=job, events=of_type["evaluation"])
    record_groups(job=job, events=of_type["rollout"])


def rebuild_tables(job: Job) -> None:
    """Make the tables for reading again from the events 1..``last_seq``. Hold the job's lock."""
    forget_progress(job=job)
    forget_rollouts(job=job)
    recorded = JobEvent.objects.filter(job=job, seq__lte=job.last_seq, type__in=("step", "evaluation", "rollout"))
    after = 0
    while chunk := list(recorded.filter(seq__gt=after).order_by("seq")[:CHUNK]):
        _record(job, chunk)
        after = chunk[-1].seq


def _apply(job: Job, event: JobEvent) -> None:
    payload: dict[str, Any] = event.payload
    match event.type:
        case "status":
            job.status, job.reason, job.next = payload["status"], payload["reason"], payload["next"]
            if job.status != Status.QUEUED and job.started_at is None:
                job.started_at = event.time
            job.finished_at = event.time if job.status in TERMINAL_STATUSES else None
        case "step":
            job.step = payload["step"]
            job.metrics = payload["metrics"]
        case "control":
            job.applied_revision = payload["revision"]
            job.priority, job.steps = payload["priority"], payload["steps"]
        case "evaluation" if payload["adapter_version"] is None:
            job.base_accuracy = payload["accuracy"]
        case "evaluation":
            job.accuracy = payload["accuracy"]
        case "adapter":
            record_published(job=job, payload=AdapterPublished.model_validate(payload), time=event.time)
        case "adapter_removed":
            record_removed(job=job, payload=AdapterRemoved.model_validate(payload))
