"""What a job's events say about the job: the fields of ``Job`` under "projection", its adapter versions, its usage,
what was measured of it (``portal.progress``), its rollouts (``portal.rollouts``), and the messages to webhooks and
members that follow.

Invariant: a pure function of the events 1..``last_seq`` in order; how they were batched or repeated leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from engine.events import TERMINAL_STATUSES
from portal.adapters.models import AdapterVersion
from portal.adapters.services import record_versions
from portal.bulk import update_rows
from portal.jobs.models import Job, JobEvent, Status
from portal.jobs.stored import StoredEvent, read_stored
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
TABLES = ("step", "evaluation", "rollout")
"""Types of events the tables for reading hold."""


def advance_jobs(coming: Iterable[tuple[Job, Iterable[StoredEvent]]]) -> list[Job]:
    """Apply to each job those of its stored events that follow ``last_seq`` without a gap; save, and return the jobs
    that changed. What the events of all these jobs write is written together."""
    changed = []
    taken = Taken()
    for job, events in coming:
        before = job.last_seq
        for event in events:
            if event.seq != job.last_seq + 1:
                break
            occurrence = _apply(job, event)
            job.last_seq = event.seq
            taken.add(job, event)
            if occurrence:
                taken.write()  # what is told may name the adapter version the event brought
                announce_job(job=job, occurrence=replace(occurrence, adapter=_adapter_of(event)))
        if job.last_seq != before:
            changed.append(job)
    taken.write()
    update_rows(Job, PROJECTED_FIELDS, changed)
    return changed


class Taken:
    """Events that were applied to their jobs and wait to be written to the tables."""

    def __init__(self) -> None:
        self._events: list[StoredEvent] = []
        self._by_job: dict[Job, list[StoredEvent]] = {}

    def add(self, job: Job, event: StoredEvent) -> None:
        self._events.append(event)
        self._by_job.setdefault(job, []).append(event)
        if len(self._events) == CHUNK:
            self.write()

    def write(self) -> None:
        """Usage is added to what was spent before."""
        record_versions(
            events=[event for event in self._events if event.type in ("adapter", "adapter_removed")],
            tenant_ids={job.pk: job.tenant_id for job in self._by_job},
        )
        _record(self._events)
        record_usage(spent=[(job, sum_events(events)) for job, events in self._by_job.items()])
        self._events, self._by_job = [], {}


def _record(events: Iterable[StoredEvent]) -> None:
    """Put events into the tables made for reading."""
    of_type: dict[str, list[StoredEvent]] = {name: [] for name in TABLES}
    for event in events:
        of_type.get(event.type, []).append(event)
    record_steps(events=of_type["step"])
    record_evaluations(events=of_type["evaluation"])
    record_groups(events=of_type["rollout"])


def rebuild_tables(job: Job) -> None:
    """Make the tables for reading again from the events 1..``last_seq``. Hold the job's lock."""
    forget_progress(job=job)
    forget_rollouts(job=job)
    recorded = JobEvent.objects.filter(job=job, seq__lte=job.last_seq, type__in=TABLES)
    events = read_stored(recorded, at_once=CHUNK)
    while chunk := list(islice(events, CHUNK)):
        _record(chunk)


def _adapter_of(event: StoredEvent) -> AdapterVersion | None:
    if event.type != "adapter":
        return None
    return AdapterVersion.objects.get(job=event.job_id, version=event.payload["adapter_version"])


def _apply(job: Job, event: StoredEvent) -> Occurrence | None:
    """Returns what webhooks and members hear of."""
    payload = event.payload
    match event.type:
        case "status":
            was_queued = job.started_at is None
            job.status, job.reason, job.next = payload["status"], payload["reason"], payload["next"]
            if job.status != Status.QUEUED and job.started_at is None:
                job.started_at = event.time
            job.finished_at = event.time if job.status in TERMINAL_STATUSES else None
            if job.is_finished:
                return Occurrence(f"job.{job.status}", event.seq)
            if was_queued and job.started_at is not None:
                return Occurrence("job.started", event.seq)
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
        case "adapter" if payload.get("final", False):
            _take_accuracy_of(job, event)
            return Occurrence("adapter.published", event.seq)
    return None


def _is_result_so_far(job: Job, payload: dict[str, Any]) -> bool:
    """Whether the version evaluated would be the job's result if it ended now.

    The first one is; events of older engines do not say which is best, there the last one counts.
    """
    if job.accuracy is None or payload.get("best", True):
        return True
    return bool(
        job.spec.get("evaluation", {}).get("result") == "last"
    )  # asked last: the spec is large, and not read yet


def _take_accuracy_of(job: Job, final: StoredEvent) -> None:
    """The engine has said which version is the result; it is the best one unless that could not be read any more."""
    version = final.payload["adapter_version"]
    found = JobEvent.objects.filter(job=job, type="evaluation", seq__lt=final.seq, payload__adapter_version=version)
    evaluated = found.order_by("seq").last()
    if evaluated is not None:
        job.accuracy = evaluated.payload["accuracy"]
