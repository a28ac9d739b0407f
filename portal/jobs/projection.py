"""What a job's events say about the job: the fields of ``Job`` under "projection", its adapter versions, its usage,
what was measured of it (``portal.progress``), its rollouts (``portal.rollouts``), and the messages to webhooks and
members that follow.

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
from portal.usage.recording import record_usage, sum_events
from portal.webhooks.occurrences import Occurrence, announce_job

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
    "last_accuracy",
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
        for occurrence in _apply(job, event):
            announce_job(job=job, occurrence=occurrence)
        job.last_seq = event.seq
        chunk.append(event)
        if len(chunk) == CHUNK:
            _take(job, chunk)
            chunk = []
    if job.last_seq == before:
        return False
    _take(job, chunk)
    job.save(update_fields=PROJECTED_FIELDS)
    return True


def _take(job: Job, events: list[JobEvent]) -> None:
    """What is new: its usage is added to what was spent before."""
    _record(job, events)
    record_usage(job=job, days=sum_events(events))


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


def _apply(job: Job, event: JobEvent) -> list[Occurrence]:
    """Returns what webhooks and members hear of."""
    payload: dict[str, Any] = event.payload
    match event.type:
        case "status":
            was_queued = job.started_at is None
            job.status, job.reason, job.next = payload["status"], payload["reason"], payload["next"]
            if job.status != Status.QUEUED and job.started_at is None:
                job.started_at = event.time
            job.finished_at = event.time if job.status in TERMINAL_STATUSES else None
            if job.is_finished:
                return [Occurrence(f"job.{job.status}", event.seq)]
            if was_queued and job.started_at is not None:
                return [Occurrence("job.started", event.seq)]
        case "step":
            job.step = payload["step"]
            job.metrics = payload["metrics"]
        case "control":
            job.applied_revision = payload["revision"]
            job.priority, job.steps = payload["priority"], payload["steps"]
        case "evaluation" if payload["adapter_version"] is None:
            job.base_accuracy = payload["accuracy"]
        case "evaluation":
            if _is_result_so_far(job, payload):
                job.accuracy = payload["accuracy"]
            job.last_accuracy = payload["accuracy"]
        case "adapter":
            adapter = record_published(job=job, payload=AdapterPublished.model_validate(payload), time=event.time)
            if adapter.final:
                _take_accuracy_of(job, event)
                return [Occurrence("adapter.published", event.seq, adapter)]
        case "adapter_removed":
            record_removed(job=job, payload=AdapterRemoved.model_validate(payload))
    return []


def _is_result_so_far(job: Job, payload: dict[str, Any]) -> bool:
    """Whether the version evaluated would be the job's result if it ended now.

    The first one is; events of older engines do not say which is best, there the last one counts.
    """
    wants_last = job.spec.get("evaluation", {}).get("result") == "last"
    return wants_last or job.accuracy is None or bool(payload.get("best", True))


def _take_accuracy_of(job: Job, final: JobEvent) -> None:
    """The engine has said which version is the result; it is the best one unless that could not be read any more."""
    version = final.payload["adapter_version"]
    found = JobEvent.objects.filter(job=job, type="evaluation", seq__lt=final.seq, payload__adapter_version=version)
    evaluated = found.order_by("seq").last()
    if evaluated is not None:
        job.accuracy = evaluated.payload["accuracy"]
