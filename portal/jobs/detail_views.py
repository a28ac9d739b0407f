"""The page of one job, made of parts that are also served alone for the live updates, and that of several compared."""

from __future__ import annotations

import csv
import uuid
from collections.abc import Iterator
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.utils.http import content_disposition_header
from django.utils.text import slugify

from portal.adapters.selectors import list_adapter_versions
from portal.jobs import history
from portal.jobs.compare import CURVES, FEWEST, MOST, differing_settings, get_jobs, overlay_curves
from portal.jobs.findings import find_findings, first_reward_errors
from portal.jobs.forms import PriorityForm, StepsForm
from portal.jobs.models import Job
from portal.jobs.selectors import get_job, list_jobs
from portal.jobs.settings_diff import compare_settings
from portal.jobs.timeline import build_timeline
from portal.pages.http import TenantRequest, tenant_page, uuid_or_404
from portal.progress import selectors as progress
from portal.rollouts.selectors import shared_prompts

SHOWN_ADAPTERS = 5
OFFERED_JOBS = 100
"""To add to a comparison; the list of jobs reaches the older ones."""


@tenant_page
def job_detail(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    job = get_job(request.tenant, job_id)
    compared_with, settings = compare_settings(job)
    context = {
        **_summary(job),
        **_rollouts(job),
        **_messages(job),
        **_adapters(request, job),
        **_findings(job),
        **_timeline(request, job),
        "curve": {
            "steps": progress.step_points(job),
            "evaluations": progress.evaluations(job),
            "start": job.started_at.timestamp() if job.started_at else None,
            "slug": slugify(job.name) or "job",
        },
        "socket_path": f"/ws/jobs/{job.pk}/",
        "compared_with": compared_with,
        "changed_settings": [setting for setting in settings if setting.differs],
        "all_settings": settings,
        "steps_form": StepsForm(initial={"steps": job.wanted_steps}),
        "priority_form": PriorityForm(initial={"priority": job.wanted_priority}),
    }
    return render(request, "jobs/detail.html", context)


@tenant_page
def job_summary(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    return render(request, "jobs/_summary.html", _summary(get_job(request.tenant, job_id)))


@tenant_page
def job_rollouts(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    """Groups newer than ``?after=<seq>``, to be put above those shown."""
    after = request.GET.get("after", "")
    job = get_job(request.tenant, job_id)
    return render(request, "jobs/_rollouts.html", _rollouts(job, after=int(after) if after.isdigit() else 0))


@tenant_page
def job_messages(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    return render(request, "jobs/_messages.html", _messages(get_job(request.tenant, job_id)))


@tenant_page
def job_adapters(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    return render(request, "jobs/_adapters.html", _adapters(request, get_job(request.tenant, job_id)))


@tenant_page
def job_findings(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    return render(request, "jobs/_findings.html", _findings(get_job(request.tenant, job_id)))


@tenant_page
def job_timeline(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    """The latest spans, or those reported below ``?before=<seq>``."""
    return render(request, "jobs/_timeline.html", _timeline(request, get_job(request.tenant, job_id)))


@tenant_page
def job_metrics_csv(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    """Every step with every metric, held-out results beside them."""
    job = get_job(request.tenant, job_id)
    response = HttpResponse(_csv_lines(job), content_type="text/csv; charset=utf-8")
    filename = f"{slugify(job.name) or 'job'}-metrics.csv"
    response["Content-Disposition"] = content_disposition_header(True, filename) or ""
    return response


class _Echo:
    """Takes what csv writes, and hands it on."""

    def write(self, line: str) -> str:
        return line


def _csv_lines(job: Job) -> Iterator[str]:
    points = progress.step_points(job, max_points=max(1, job.step))
    names = sorted({name for point in points for name in point["metrics"]})
    held_out = {evaluation["step"]: evaluation for evaluation in progress.evaluations(job)}
    writer = csv.writer(_Echo())
    yield writer.writerow(["step", "time", "adapter_version", *names, "held_out_accuracy", "held_out_reward"])
    rows = {step: ["", "", *[""] * len(names)] for step in held_out}
    for point in points:
        figures = [point["metrics"].get(name, "") for name in names]
        rows[point["step"]] = [f"{point['time']:.3f}", point["adapter_version"], *figures]
    for step in sorted(rows):
        evaluation = held_out.get(step)
        results = [evaluation["accuracy"], evaluation["reward_mean"]] if evaluation else ["", ""]
        yield writer.writerow([step, *rows[step], *results])


def _summary(job: Job) -> dict[str, Any]:
    known = job.accuracy is not None and job.base_accuracy is not None
    return {
        "job": job,
        "elapsed": history.elapsed(job),
        "time_left": history.time_left(job),
        "spend": progress.spend(job),
        "last_differs": job.last_accuracy != job.accuracy,
        "gain": f"{100 * (job.accuracy - job.base_accuracy):+.1f} points" if known else "",  # type: ignore[operator]
    }


def _rollouts(job: Job, after: int = 0) -> dict[str, Any]:
    groups, more = history.rollout_groups(job, after=after)
    newest = groups[0].seq if groups else after
    return {"job": job, "groups": groups, "last_rollout_seq": newest, "leaves_gap": bool(after) and more}


def _messages(job: Job) -> dict[str, Any]:
    return {"job": job, "events": history.messages(job)}


def _adapters(request: TenantRequest, job: Job) -> dict[str, Any]:
    """The newest versions, and always the best and the result."""
    kept = list_adapter_versions(request.tenant, job.pk).filter(removed=False)
    best = progress.best_version(job)
    newest = list(kept[:SHOWN_ADAPTERS])
    shown = {adapter.pk: adapter for adapter in [*newest, *kept.filter(final=True), *kept.filter(version=best or 0)]}
    adapters = sorted(shown.values(), key=lambda adapter: -adapter.version)
    metrics = progress.version_metrics(adapters)
    return {
        "job": job,
        "adapters": [(adapter, metrics[adapter.pk]) for adapter in adapters],
        "adapter_count": kept.count(),
    }


def _findings(job: Job) -> dict[str, Any]:
    return {
        "job": job,
        "findings": find_findings(job),
        "reward_errors": first_reward_errors(job),
        "reward_error_count": progress.spend(job).reward_errors,
    }


def _timeline(request: TenantRequest, job: Job) -> dict[str, Any]:
    before = request.GET.get("before", "")
    cursor = int(before) if before.isascii() and before.isdigit() and len(before) < 10 else None
    return {"job": job, "timeline": build_timeline(job, before=cursor), "timeline_before": cursor}


@tenant_page
def job_compare(request: TenantRequest) -> HttpResponse:
    """``?job=<id>&job=<id>``: the address is all there is to a comparison, so it can be shared within the tenant."""
    jobs = get_jobs(request.tenant, [uuid_or_404(text) for text in request.GET.getlist("job")])
    offered = list_jobs(request.tenant).exclude(pk__in=[job.pk for job in jobs])[:OFFERED_JOBS]
    context: dict[str, Any] = {
        "jobs": [(job, progress.best_version(job)) for job in jobs],
        "offered": offered if len(jobs) < MOST else [],
        "fewest": FEWEST,
        "most": MOST,
        "enough": len(jobs) >= FEWEST,
    }
    if context["enough"]:
        context |= {
            "curves": {"jobs": overlay_curves(jobs), "metrics": CURVES},
            "differences": [
                (row.label, [(value, job.name) for value, job in zip(row.values, jobs, strict=True)])
                for row in differing_settings(jobs)
            ],
            "shared": shared_prompts(jobs),
        }
    return render(request, "jobs/compare.html", context)
