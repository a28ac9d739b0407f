"""Values the new-job form starts with: a clone of a job, or a job that continues from an adapter version."""

from __future__ import annotations

import re
from typing import Any

from portal.adapters.models import AdapterVersion
from portal.jobs.form_fields import NAME_SEPARATOR, SECTIONS
from portal.jobs.models import Job
from portal.tenants.models import Tenant

NUMBERED = re.compile(r" \((\d+)\)$")


def initial_from_job(tenant: Tenant, job: Job) -> dict[str, Any]:
    """A form that would make the same job again, with as many steps as it has by now."""
    values: dict[str, Any] = {
        "name": next_name(tenant, job.name),
        "rows": _rows_of(job),
        "dataset_version": job.dataset_version_id,
        "reward_version": job.reward_version_id,
        "base_model": job.base_model_id,
        "start_from": job.start_from_id,
        "seed": job.spec.get("seed", 0),
    }
    for section in ("environment", *SECTIONS):
        for setting, value in job.spec.get(section, {}).items():
            values[f"{section}{NAME_SEPARATOR}{setting}"] = value
    if values["rows"] != "dataset":
        del values["environment__type"]  # follows from the rows
    return {**values, "training__steps": job.steps}


def initial_from_adapter(tenant: Tenant, adapter: AdapterVersion) -> dict[str, Any]:
    """A form for a job like the adapter's own that continues from it."""
    return {
        **initial_from_job(tenant, adapter.job),
        "name": f"{adapter.job.name[:188]} (continued)",
        "start_from": adapter.pk,
    }


def next_name(tenant: Tenant, name: str) -> str:
    """``sums`` -> ``sums (2)``, or the first number above that the tenant has not used."""
    stem = NUMBERED.sub("", name)[:190]
    taken = Job.objects.filter(tenant=tenant, name__startswith=f"{stem} (").values_list("name", flat=True)
    numbers = [int(match[1]) for each in taken if (match := NUMBERED.search(each)) and each == f"{stem}{match[0]}"]
    return f"{stem} ({max(numbers, default=1) + 1})"


def _rows_of(job: Job) -> str:
    if job.spec["environment"].get("type") != "reasoning_gym":
        return "dataset"
    return "entries" if job.dataset_version_id else "generated"
