"""Two to six jobs side by side: curves, the settings that differ, answers to the same prompts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import Http404

from portal.jobs.models import Job
from portal.jobs.selectors import list_jobs
from portal.jobs.settings_diff import MISSING, flatten_settings
from portal.progress import selectors as progress
from portal.tenants.models import Tenant

FEWEST, MOST = 2, 6
POINTS = 300
"""Of one job's curve."""
CURVES = {
    "reward_mean": "Mean reward",
    "held_out": "Held-out accuracy",
    "accuracy": "Accuracy in training",
    "completion_tokens_mean": "Completion length",
    "entropy": "Entropy",
    "kl": "KL to the base model",
    "grad_norm": "Gradient norm",
    "zero_variance_groups": "Groups without signal",
}
"""Metrics that are overlaid, by key."""


def get_jobs(tenant: Tenant, job_ids: Sequence[uuid.UUID]) -> list[Job]:
    """In the order named, each once, at most ``MOST``; raises Http404 where one is not the tenant's."""
    wanted = list(dict.fromkeys(job_ids))[:MOST]
    found = list_jobs(tenant).in_bulk(wanted)
    if len(found) < len(wanted):
        raise Http404("No such job.")
    return [found[job_id] for job_id in wanted]


def overlay_curves(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """For each job its ``name`` and ``points``: ``{"step", "time", <key of CURVES>: value}`` by step."""
    return [{"id": str(job.pk), "name": job.name, "points": _points(job)} for job in jobs]


def _points(job: Job) -> list[dict[str, Any]]:
    points: dict[int, dict[str, Any]] = {}
    start = job.started_at.timestamp() if job.started_at else 0.0
    for point in progress.step_points(job, max_points=POINTS):
        metrics = {key: point["metrics"][key] for key in CURVES if key in point["metrics"]}
        points[point["step"]] = {"step": point["step"], "time": point["time"] - start, **metrics}
    for evaluation in progress.evaluations(job):
        at = {"step": evaluation["step"], "time": max(0.0, evaluation["time"] - start)}
        points[evaluation["step"]] = {**at, **points.get(evaluation["step"], {}), "held_out": evaluation["accuracy"]}
    return [points[step] for step in sorted(points)]


@dataclass(frozen=True)
class Difference:
    """A setting in which the jobs are not alike."""

    name: str
    values: list[str]
    """One a job."""

    @property
    def label(self) -> str:
        return self.name.replace("_", " ").replace(".", " · ")


def differing_settings(jobs: Sequence[Job]) -> list[Difference]:
    settings = [flatten_settings(job) for job in jobs]
    names = dict.fromkeys(name for each in settings for name in each)
    rows = [Difference(name, [each.get(name, MISSING) for each in settings]) for name in names]
    return [row for row in rows if len(set(row.values)) > 1]
