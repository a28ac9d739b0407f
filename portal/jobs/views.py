"""Pages of jobs: the list, a new one, and the answers to what a tenant asks of one. See also ``detail_views``."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from portal.adapters.selectors import get_adapter_version
from portal.errors import ServiceError
from portal.jobs import history
from portal.jobs.forms import (
    ADVANCED,
    BASIC,
    PRESETS,
    ControlForm,
    JobForm,
    PriorityForm,
    StepsForm,
    form_field_names,
    initial_from_adapter,
    initial_from_job,
)
from portal.jobs.models import Job, Status
from portal.jobs.selectors import get_job, list_jobs
from portal.jobs.services import cancel_job, create_job, extend_job, pause_job, resume_job, set_priority
from portal.pages.http import (
    TenantRequest,
    add_service_errors,
    in_words,
    page_number,
    tenant_page,
    uuid_or_404,
    writer_page,
)

PAGE_SIZE = 25


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


@writer_page
def job_new(request: TenantRequest) -> HttpResponse:
    """A new job, one with an earlier job's settings (``?from=<job>``), or one that continues from an adapter version
    (``?start_from=<adapter>``; with ``from`` and an empty ``start_from`` one that does not)."""
    if request.method != "POST":
        return _show_form(request, JobForm(tenant=request.tenant, initial=_initial(request)))
    form = JobForm(request.POST, tenant=request.tenant)
    if not form.is_valid():
        return _show_form(request, form)
    try:
        job = create_job(
            tenant=request.tenant,
            user=request.user,
            name=form.cleaned_data["name"],
            base_model_id=form.cleaned_data["base_model"].pk,
            dataset_version=form.cleaned_data["dataset_version"],
            reward_version=form.cleaned_data["reward_version"],
            settings=form.to_settings(),
            start_from=form.cleaned_data["start_from"],
            idempotency_key=request.POST.get("idempotency_key", ""),
        )
    except ServiceError as error:
        add_service_errors(form, error, form_field_names())
        return _show_form(request, form)
    return redirect("jobs:detail", job.pk)


def _initial(request: TenantRequest) -> dict[str, Any]:
    adapter, earlier = request.GET.get("start_from"), request.GET.get("from")
    if adapter:
        return initial_from_adapter(get_adapter_version(request.tenant, uuid_or_404(adapter)))
    if earlier:
        values = initial_from_job(get_job(request.tenant, uuid_or_404(earlier)))
        return values if adapter is None else {**values, "start_from": None}
    return {name: request.GET[name] for name in ("dataset_version", "reward_version") if name in request.GET}


def _show_form(request: TenantRequest, form: JobForm) -> HttpResponse:
    datasets = list(form.fields["dataset_version"].queryset)  # type: ignore[attr-defined]
    context = {
        "form": form,
        "source": form.source,
        "source_is_gone": form["start_from"].value() and form.source is None,
        "datasets": datasets,
        "rewards": form.fields["reward_version"].queryset.exists(),  # type: ignore[attr-defined]
        "row_counts": {str(v.pk): {"train": v.train_rows, "held_out": v.held_out_rows} for v in datasets},
        "basic": [form[name] for name in BASIC],
        "advanced": [form[name] for name in ADVANCED],
        "advanced_open": any(form[name].errors for name in [*ADVANCED, "environment__system_prompt", "seed"]),
        "base_models": list(form.fields["base_model"].queryset),  # type: ignore[attr-defined]
        "presets": PRESETS,
        "preset_values": {preset["id"]: preset["values"] for preset in PRESETS},
        # One key per shown form: sending it twice makes one job.
        "idempotency_key": request.POST.get("idempotency_key") or uuid.uuid4().hex,
    }
    return render(request, "jobs/new.html", context, status=400 if form.errors else 200)


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
