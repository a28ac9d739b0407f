"""Pages of jobs: the list, a new one, and the answers to what a tenant asks of one. See also ``detail_views``."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from portal.errors import ServiceError
from portal.jobs import history
from portal.jobs.forms import ControlForm, PriorityForm, StepsForm
from portal.jobs.models import Job, Status
from portal.jobs.selectors import get_job, list_jobs
from portal.jobs.services import cancel_job, extend_job, pause_job, resume_job, set_priority
from portal.pages.http import TenantRequest, in_words, page_number, tenant_page, writer_page

PAGE_SIZE = 25


@tenant_page
def job_list(request: TenantRequest) -> HttpResponse:
    status, name = (request.GET.get(key, "").strip() for key in ("status", "name"))
    jobs = list_jobs(request.tenant)
    if status in Status.values:
        jobs = jobs.filter(status=status)
    if name:
        jobs = jobs.filter(name__icontains=name) if "\0" not in name else jobs.none()
    kept = urlencode({key: value for key, value in (("status", status), ("name", name)) if value})
    page = Paginator(jobs, PAGE_SIZE).get_page(page_number(request))
    histories = history.reward_histories(page.object_list)
    context = {
        "page": page,
        "items": [{"job": job, "rewards": histories[job.pk]} for job in page],
        "status": status,
        "statuses": [(value, label, urlencode({"status": value, "name": name})) for value, label in Status.choices],
        "name": name,
        "query": f"&{kept}" if kept else "",
    }
    template = "jobs/_table.html" if request.headers.get("HX-Request") else "jobs/list.html"
    return render(request, template, context)


# --- control: each answers with the job's page, where it says what will happen or why it will not -------------------


@writer_page
@require_POST
def job_pause(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    held = get_job(request.tenant, job_id).hold is not None
    done = "The job stays paused until somebody resumes it." if held else "The job is being paused."
    return _control(request, job_id, pause_job, done)


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
