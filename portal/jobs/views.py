"""Pages of jobs. The job page is made of parts that are also served alone, for the live updates."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from portal.adapters.selectors import list_adapter_versions
from portal.errors import ServiceError
from portal.jobs import history
from portal.jobs.form_fields import SECTIONS
from portal.jobs.forms import ControlForm, PriorityForm, StepsForm
from portal.jobs.models import Job, Status
from portal.jobs.selectors import get_job, list_jobs
from portal.jobs.services import cancel_job, extend_job, pause_job, resume_job, set_priority
from portal.pages.http import TenantRequest, in_words, page_number, tenant_page, writer_page

PAGE_SIZE = 25
SHOWN_ADAPTERS = 5


@tenant_page
def job_list(request: TenantRequest) -> HttpResponse:
    status = request.GET.get("status", "")
    jobs = list_jobs(request.tenant)
    if status in Status.values:
        jobs = jobs.filter(status=status)
    page = Paginator(jobs, PAGE_SIZE).get_page(page_number(request))
    histories = history.reward_histories(page.object_list)
    context = {
        "page": page,
        "items": [{"job": job, "rewards": histories[job.pk]} for job in page],
        "status": status,
        "statuses": Status.choices,
    }
    template = "jobs/_table.html" if request.headers.get("HX-Request") else "jobs/list.html"
    return render(request, template, context)


@tenant_page
def job_detail(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    job = get_job(request.tenant, job_id)
    context = {
        **_summary(job),
        **_rollouts(job),
        **_messages(job),
        **_adapters(request, job),
        "curve": {"steps": history.step_points(job), "evaluations": history.evaluations(job)},
        "socket_path": f"/ws/jobs/{job.pk}/",
        "job_settings": _settings(job),
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


def _summary(job: Job) -> dict[str, Any]:
    known = job.accuracy is not None and job.base_accuracy is not None
    return {
        "job": job,
        "elapsed": history.elapsed(job),
        "seconds_left": history.seconds_left(job),
        "gain": f"{100 * (job.accuracy - job.base_accuracy):+.1f} points" if known else "",  # type: ignore[operator]
    }


def _settings(job: Job) -> list[tuple[str, list[tuple[str, Any]]]]:
    """The spec's sections as people read them."""
    sections = [("seed", {"seed": job.spec["seed"]}), *((name, job.spec[name]) for name in ("environment", *SECTIONS))]
    return [
        (section.capitalize(), [(name.replace("_", " "), value) for name, value in values.items() if value != ""])
        for section, values in sections[1:] + sections[:1]
    ]


def _rollouts(job: Job, after: int = 0) -> dict[str, Any]:
    groups = history.rollout_groups(job, after=after)
    return {"job": job, "groups": groups, "last_rollout_seq": groups[0].seq if groups else after}


def _messages(job: Job) -> dict[str, Any]:
    return {"job": job, "events": history.messages(job)}


def _adapters(request: TenantRequest, job: Job) -> dict[str, Any]:
    adapters = list_adapter_versions(request.tenant, job.pk).filter(removed=False)
    return {"job": job, "adapters": adapters[:SHOWN_ADAPTERS], "adapter_count": adapters.count()}


# --- control: each answers with the job's page, where it says what will happen or why it will not -------------------


@writer_page
@require_POST
def job_pause(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    return _control(request, job_id, pause_job, "The job is being paused.")


@writer_page
@require_POST
def job_resume(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    return _control(request, job_id, resume_job, "The job goes on from its last committed step.")


@writer_page
@require_POST
def job_cancel(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    return _control(request, job_id, cancel_job, "The job is being cancelled. The adapter committed so far is kept.")


@writer_page
@require_POST
def job_steps(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    return _control_number(request, job_id, StepsForm(request.POST), extend_job, "steps", "The job ends after step {}.")


@writer_page
@require_POST
def job_priority(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    form = PriorityForm(request.POST)
    return _control_number(request, job_id, form, set_priority, "priority", "The job's priority is {} now.")


def _control_number(
    request: TenantRequest, job_id: uuid.UUID, form: ControlForm, change: Callable[..., Job], name: str, done: str
) -> HttpResponse:
    job = get_job(request.tenant, job_id)
    if form.is_valid():
        return _control(request, job_id, change, done.format(form.number), **{name: form.number})
    messages.error(request, " ".join(str(error) for errors in form.errors.values() for error in errors))
    return redirect("jobs:detail", job.pk)


def _control(
    request: TenantRequest, job_id: uuid.UUID, change: Callable[..., Job], done: str, **wanted: int
) -> HttpResponse:
    try:
        change(tenant=request.tenant, user=request.user, job_id=job_id, **wanted)
    except ServiceError as error:
        messages.error(request, in_words(error))
    else:
        messages.info(request, done)
    return redirect("jobs:detail", job_id)
