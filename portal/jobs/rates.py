"""What earlier jobs measured on a base model's pool: how fast it samples and trains, and how long jobs waited.

Rates are the pool's, so jobs of all tenants count; nothing else of them is read. Each is the median over the last
steps of the last ``JOBS`` jobs, as busy as the pool was then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from portal.base_models.models import BaseModel
from portal.datasets.models import DatasetVersion
from portal.jobs.models import OPEN_STATUSES, Job, Status
from portal.tenants.models import Tenant

JOBS = 20

Metrics = dict[str, float]


@dataclass(frozen=True)
class Rates:
    """Measured on one pool; None where no job has measured it."""

    jobs: int
    """How many jobs' last steps were read."""
    sampled_per_second: float | None
    trained_per_second: float | None
    publish_seconds: float
    accelerator_seconds_per_token: float | None
    """Per token sampled or trained."""
    wait_seconds: float | None
    """From being asked for to being taken up by the engine."""
    running: int
    """Jobs that share the pool now."""

    @property
    def known(self) -> bool:
        return self.sampled_per_second is not None and self.trained_per_second is not None


def measure_rates(base_model: BaseModel) -> Rates:
    """Two queries, however many jobs there are."""
    jobs = Job.objects.filter(base_model=base_model)
    recent = list(
        jobs.filter(step__gt=0).order_by("-created_at").values_list("metrics", "created_at", "started_at")[:JOBS]
    )
    metrics = [one for one, _, _ in recent]
    waits = [(started - created).total_seconds() for _, created, started in recent if started]
    return Rates(
        jobs=len(recent),
        sampled_per_second=_median(metrics, lambda m: m["tokens_sampled"] / m["rollout_seconds"]),
        trained_per_second=_median(metrics, lambda m: m["tokens_trained"] / m["train_seconds"]),
        publish_seconds=_median(metrics, lambda m: m["publish_seconds"]) or 0.0,
        accelerator_seconds_per_token=_median(
            metrics, lambda m: m["accelerator_seconds"] / (m["tokens_sampled"] + m["tokens_trained"])
        ),
        wait_seconds=max(0.0, median(waits)) if waits else None,
        running=jobs.filter(status__in=set(OPEN_STATUSES) - {Status.PAUSED}).count(),
    )


def _median(metrics: list[Metrics], rate: Callable[[Metrics], float]) -> float | None:
    """Over the jobs that measured what ``rate`` reads; None where none did."""
    found = []
    for one in metrics:
        try:
            found.append(rate(one))
        except (KeyError, ZeroDivisionError):
            continue
    return median(found) if found else None


def usual_completion_tokens(tenant: Tenant, base_model_id: str, dataset_version: DatasetVersion | None) -> float | None:
    """Mean completion length of the last step of the tenant's latest job on the same rows and base model."""
    if dataset_version is None:
        return None
    earlier: Any = (
        Job.objects.filter(
            tenant=tenant, base_model_id=base_model_id, dataset_version__dataset=dataset_version.dataset_id, step__gt=0
        )
        .order_by("-created_at")
        .values_list("metrics", flat=True)
        .first()
    )
    return (earlier or {}).get("completion_tokens_mean")
