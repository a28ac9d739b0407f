"""Reads of what was measured; every function takes a job, or jobs, that the caller has found for its tenant."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from django.db.models import F, Q
from django.utils import timezone

from portal.adapters.models import AdapterVersion
from portal.jobs.models import Job
from portal.progress.models import EvaluationRecord, StepRecord

MAX_POINTS = 1000
"""Of a curve: more cannot be told apart on a screen."""
PACE_STEPS = 20
"""Steps whose time says how fast the job is now."""


@dataclass(frozen=True)
class Spend:
    """What a job's committed steps took; evaluations are not among it."""

    tokens_sampled: int
    tokens_trained: int
    accelerator_seconds: float
    reward_errors: int


def step_points(job: Job, *, after: int = 0, max_points: int = MAX_POINTS) -> list[dict[str, Any]]:
    """``{"step", "time", "adapter_version", "metrics"}`` of the steps above ``after``, in order.

    Thinned evenly to about ``max_points``; the last step is always among them.
    """
    stride = max(1, (job.step - after) // max_points)
    steps = StepRecord.objects.filter(job=job, step__gt=after).order_by("step")
    if stride > 1:
        steps = steps.annotate(rest=F("step") % stride).filter(Q(rest=0) | Q(step=job.step))
    return [
        {"step": step, "time": time.timestamp(), "adapter_version": version, "metrics": metrics}
        for step, time, version, metrics in steps.values_list("step", "time", "adapter_version", "metrics")
    ]


def evaluations(job: Job) -> list[dict[str, Any]]:
    """The held-out evaluations, in order; fields as in ``engine.events.Evaluated``, and ``time``."""
    found = EvaluationRecord.objects.filter(job=job).order_by("seq")
    names = ("step", "adapter_version", "rows", "accuracy", "reward_mean", "best")
    return [{**{name: getattr(record, name) for name in names}, "time": record.time.timestamp()} for record in found]


def best_version(job: Job) -> int | None:
    """The adapter version that did best on held-out rows so far; None before one was evaluated."""
    found = EvaluationRecord.objects.filter(job=job, best=True, adapter_version__isnull=False)
    return found.order_by("seq").values_list("adapter_version", flat=True).last()


def spend(job: Job) -> Spend:
    """From the totals kept with the last step: as cheap after 100,000 steps as after one."""
    last = StepRecord.objects.filter(job=job).order_by("seq").last()
    return Spend(
        tokens_sampled=round(last.total_tokens_sampled) if last else 0,
        tokens_trained=round(last.total_tokens_trained) if last else 0,
        accelerator_seconds=last.total_accelerator_seconds if last else 0.0,
        reward_errors=round(last.total_reward_errors) if last else 0,
    )


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the last step, if it goes on as fast as the fast, or as slowly as the slow, of the recent steps."""

    low: float
    high: float


def time_left(job: Job, *, since: datetime, now: datetime | None = None) -> TimeLeft | None:
    """From the times of the last ``PACE_STEPS`` steps committed from ``since`` on (the last pause: it is no pace).

    Between the remaining steps at the 20th and at the 80th percentile of the measured times. None before two steps.
    """
    found = StepRecord.objects.filter(job=job, time__gte=since).order_by("-seq")
    times = list(found.values_list("time", flat=True)[: PACE_STEPS + 1])
    if len(times) < 2:
        return None
    took = sorted((later - earlier).total_seconds() for later, earlier in pairwise(times))
    low, high = (took[round(share * (len(took) - 1))] for share in (0.2, 0.8))
    since_last = ((now or timezone.now()) - times[0]).total_seconds()
    remaining = max(0, job.steps - job.step)
    return TimeLeft(*(max(0.0, pace * remaining - min(since_last, pace)) for pace in (low, high)))


@dataclass(frozen=True)
class VersionMetrics:
    """What is known of one adapter version."""

    reward_mean: float | None = None
    """Of the batch that trained it."""
    accuracy: float | None = None
    """Held out."""
    held_out_reward: float | None = None
    best: bool = False
    """The best of its job by held-out evaluation."""


def version_metrics(adapters: Iterable[AdapterVersion]) -> dict[uuid.UUID, VersionMetrics]:
    """By the id of the adapter version; three queries whatever their number."""
    adapters = list(adapters)
    wanted = {(adapter.job_id, adapter.version): adapter.pk for adapter in adapters}
    job_ids = {job_id for job_id, _ in wanted}
    which = Q(job_id__in=job_ids, adapter_version__in={version for _, version in wanted})
    rewards = {
        (job_id, version): metrics.get("reward_mean")
        for job_id, version, metrics in StepRecord.objects.filter(which).values_list(
            "job_id", "adapter_version", "metrics"
        )
    }
    held_out = {
        (record.job_id, record.adapter_version): record
        for record in EvaluationRecord.objects.filter(which).order_by("seq")
    }
    best = dict(
        EvaluationRecord.objects.filter(job_id__in=job_ids, best=True, adapter_version__isnull=False)
        .order_by("seq")
        .values_list("job_id", "adapter_version")
    )
    return {
        adapter_id: VersionMetrics(
            reward_mean=rewards.get(key),
            accuracy=held_out[key].accuracy if key in held_out else None,
            held_out_reward=held_out[key].reward_mean if key in held_out else None,
            best=best.get(key[0]) == key[1],
        )
        for key, adapter_id in wanted.items()
    }
