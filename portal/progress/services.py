"""Writes of what was measured: only ever from jobs' events, those of each in order, under the jobs' locks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db.models import OuterRef, Subquery

from portal.bulk import insert_rows
from portal.jobs.models import Job
from portal.jobs.stored import StoredEvent
from portal.progress.models import EvaluationRecord, StepRecord

TOTALS = ("tokens_sampled", "tokens_trained", "accelerator_seconds", "reward_errors")
"""Metrics of a step that add up."""
STEP_FIELDS = ("job", "seq", "step", "adapter_version", "time", "metrics", *(f"total_{name}" for name in TOTALS))
EVALUATION_FIELDS = ("job", "seq", "time", "step", "adapter_version", "rows", "accuracy", "reward_mean", "best")


def record_steps(*, events: Sequence[StoredEvent]) -> None:
    """Apply ``step`` events of any jobs, each once, after all earlier ones of its job."""
    if not events:
        return
    totals = _last_totals({event.job_id for event in events})
    rows = []
    for event in events:
        metrics = event.payload["metrics"]
        before = totals.get(event.job_id, (0.0,) * len(TOTALS))
        after = tuple(total + metrics.get(name, 0.0) for name, total in zip(TOTALS, before, strict=True))
        totals[event.job_id] = after
        step, version = event.payload["step"], event.payload["adapter_version"]
        rows.append((event.job_id, event.seq, step, version, event.time, metrics, *after))
    insert_rows(StepRecord, STEP_FIELDS, rows)


def _last_totals(job_ids: set[uuid.UUID]) -> dict[uuid.UUID, tuple[float, ...]]:
    """{job id: the totals of its last step}, of jobs that have one."""
    last = StepRecord.objects.filter(job=OuterRef("pk")).order_by("-seq").values("pk")[:1]
    of_jobs = Job.objects.filter(pk__in=job_ids).order_by().values(last=Subquery(last))
    found = StepRecord.objects.filter(pk__in=of_jobs).order_by()
    return {row[0]: row[1:] for row in found.values_list("job_id", *(f"total_{name}" for name in TOTALS))}


def record_evaluations(*, events: Sequence[StoredEvent]) -> None:
    """Apply ``evaluation`` events of any jobs, each once."""
    names = EVALUATION_FIELDS[3:-1]
    insert_rows(
        EvaluationRecord,
        EVALUATION_FIELDS,
        [
            (
                event.job_id,
                event.seq,
                event.time,
                *(event.payload[name] for name in names),
                event.payload.get("best", False),  # events of older engines do not say
            )
            for event in events
        ],
    )  # fmt: skip


def forget_progress(*, job: Job) -> None:
    """Before it is made again from the events."""
    StepRecord.objects.filter(job=job).delete()
    EvaluationRecord.objects.filter(job=job).delete()
