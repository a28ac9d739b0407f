"""Writes of what was measured: only ever from a job's events, in order, under the job's lock."""

from __future__ import annotations

from collections.abc import Sequence

from portal.jobs.models import Job, JobEvent
from portal.progress.models import EvaluationRecord, StepRecord

TOTALS = ("tokens_sampled", "tokens_trained", "accelerator_seconds", "reward_errors")
"""Metrics of a step that add up."""


def record_steps(*, job: Job, events: Sequence[JobEvent]) -> None:
    """Apply ``step`` events, in order and each once."""
    if not events:
        return
    last = StepRecord.objects.filter(job=job, seq__lt=events[0].seq).order_by("seq").last()
    totals = {name: getattr(last, f"total_{name}") if last else 0.0 for name in TOTALS}
    records = []
    for event in events:
        metrics = event.payload["metrics"]
        totals = {name: total + metrics.get(name, 0.0) for name, total in totals.items()}
        records.append(
            StepRecord(
                job=job,
                seq=event.seq,
                step=event.payload["step"],
                adapter_version=event.payload["adapter_version"],
                time=event.time,
                metrics=metrics,
                **{f"total_{name}": total for name, total in totals.items()},
            )
        )
    StepRecord.objects.bulk_create(records)


def record_evaluations(*, job: Job, events: Sequence[JobEvent]) -> None:
    """Apply ``evaluation`` events, each once."""
    names = ("step", "adapter_version", "rows", "accuracy", "reward_mean")
    EvaluationRecord.objects.bulk_create(
        EvaluationRecord(
            job=job,
            seq=event.seq,
            time=event.time,
            best=event.payload.get("best", False),  # events of older engines do not say
            **{name: event.payload[name] for name in names},
        )
        for event in events
    )


def forget_progress(*, job: Job) -> None:
    """Before it is made again from the events."""
    StepRecord.objects.filter(job=job).delete()
    EvaluationRecord.objects.filter(job=job).delete()
