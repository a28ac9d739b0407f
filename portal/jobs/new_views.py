"""The new-job pages: the form in four steps, what it would take, and the lists to choose from."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from engine.spec import EvaluationSettings, Limits, LoraSettings, SamplingSettings, TrainingSettings
from portal.adapters.selectors import get_adapter_version
from portal.environments.reasoning_gym import TASKS
from portal.errors import ServiceError
from portal.jobs.choices import SHOWN, find_dataset_choices, find_reward_choices
from portal.jobs.estimates import Estimate, estimate_job
from portal.jobs.form_fields import ENVIRONMENTS, NAME_SEPARATOR
from portal.jobs.form_layout import ALGORITHMS, ENVIRONMENT_TYPES, PRESETS, ROWS, WHEN
from portal.jobs.forms import JobForm
from portal.jobs.prefill import initial_from_adapter, initial_from_job
from portal.jobs.review import review_settings
from portal.jobs.selectors import get_job
from portal.jobs.services import create_job
from portal.jobs.snippets import as_curl, as_python, request_body
from portal.pages.http import TenantRequest, uuid_or_404, writer_page


@writer_page
def job_new(request: TenantRequest) -> HttpResponse:
    """A new job, one with an earlier job's settings (``?from=<job>``), or one that continues from an adapter version
    (``?start_from=<adapter>``; with ``from`` and an empty ``start_from`` one that does not)."""
    if request.method != "POST":
        return _show_form(request, JobForm(tenant=request.tenant, initial=_initial(request)))
    form = JobForm(request.POST, tenant=request.tenant)
    if form.is_valid():
        arguments = _arguments(form)
        try:
            estimate = estimate_job(tenant=request.tenant, **arguments)
            if estimate.can_start:
                job = create_job(
                    tenant=request.tenant,
                    user=request.user,
                    idempotency_key=request.POST.get("idempotency_key", ""),
                    **arguments,
                )
                return redirect("jobs:detail", job.pk)
            _add_blocking(form, estimate)
        except ServiceError as error:
            form.add_service_error(error)
    return _show_form(request, form)


@writer_page
@require_POST
def job_preview(request: TenantRequest) -> HttpResponse:
    """What the form as it stands would start: estimate, checks, review, the same by API, and errors by field."""
    form = JobForm(request.POST, tenant=request.tenant)
    return render(request, "jobs/new_preview.html", _preview(request, form))


@writer_page
@require_GET
def dataset_choices(request: TenantRequest) -> HttpResponse:
    chosen = request.GET.get("dataset_version", "")
    query = request.GET.get("dataset_query", "")
    found = find_dataset_choices(request.tenant, query, chosen)
    context = {"datasets": found, "chosen": chosen, "query": query, "shown": SHOWN}
    return render(request, "jobs/new_datasets.html", context)


@writer_page
@require_GET
def reward_choices(request: TenantRequest) -> HttpResponse:
    chosen = request.GET.get("reward_version", "")
    query = request.GET.get("reward_query", "")
    found = find_reward_choices(request.tenant, query, chosen)
    context = {"rewards": found, "chosen": chosen, "query": query, "shown": SHOWN}
    return render(request, "jobs/new_rewards.html", context)


def _initial(request: TenantRequest) -> dict[str, Any]:
    adapter, earlier = request.GET.get("start_from"), request.GET.get("from")
    if adapter:
        return initial_from_adapter(request.tenant, get_adapter_version(request.tenant, uuid_or_404(adapter)))
    if earlier:
        values = initial_from_job(request.tenant, get_job(request.tenant, uuid_or_404(earlier)))
        return values if adapter is None else {**values, "start_from": None}
    return {name: request.GET[name] for name in ("dataset_version", "reward_version") if name in request.GET}


def _arguments(form: JobForm) -> dict[str, Any]:
    """A valid form as arguments of the services."""
    return {
        "name": form.cleaned_data["name"],
        "base_model_id": form.cleaned_data["base_model"].pk,
        "dataset_version": form.cleaned_data["dataset_version"],
        "reward_version": form.cleaned_data["reward_version"],
        "settings": form.to_settings(),
        "start_from": form.cleaned_data["start_from"],
    }


def _add_blocking(form: JobForm, estimate: Estimate) -> None:
    for check in estimate.checks:
        if check.blocks:
            name = check.field.replace(".", NAME_SEPARATOR)
            form.add_error(name if name in form.fields else None, f"{check.message} {check.hint}".strip())


def _preview(request: TenantRequest, form: JobForm) -> dict[str, Any]:
    """Works for a form that is not complete: what is not known yet is left out, and said so."""
    form.is_valid()
    url = request.build_absolute_uri(reverse("api:jobs"))
    body, review = _request_body(form), review_settings(form)
    estimate = None
    others = {name: errors for name, errors in form.errors.items() if name != "name"}
    if not others:
        form.cleaned_data.setdefault("name", "")
        arguments = _arguments(form)
        try:
            estimate = estimate_job(tenant=request.tenant, **arguments)
            _add_blocking(form, estimate)
        except ServiceError as error:
            form.add_service_error(error)
    return {
        "form": form,
        "estimate": estimate,
        "review": review,
        "curl": as_curl(body, url),
        "python": as_python(body, url),
        "field_errors": {name: [str(error) for error in errors] for name, errors in form.errors.items()},
    }


def _request_body(form: JobForm) -> dict[str, Any]:
    given = form.cleaned_data
    base_model, dataset, reward, source = (
        given.get(name) for name in ("base_model", "dataset_version", "reward_version", "start_from")
    )
    return request_body(
        name=given.get("name") or "my job",
        base_model_id=base_model.pk if base_model else "BASE_MODEL",
        dataset_version=dataset.pk if dataset else (None if form.rows_from == "generated" else "DATASET_VERSION"),
        reward_version=reward.pk if reward else "REWARD_VERSION",
        settings=form.to_settings(),
        start_from=source.pk if source else None,
        defaults={
            # A setting that is needed has no default, so it is always among those sent.
            "environment": ENVIRONMENTS[form.environment_type].model_construct(),
            "sampling": SamplingSettings(),
            "training": TrainingSettings(),
            "lora": LoraSettings.model_validate(form.source.job.spec["lora"]) if form.source else LoraSettings(),
            "evaluation": EvaluationSettings(),
            "limits": Limits(),
        },
    )


def _show_form(request: TenantRequest, form: JobForm) -> HttpResponse:
    datasets = find_dataset_choices(request.tenant, chosen=str(form["dataset_version"].value() or ""))
    rewards = find_reward_choices(request.tenant, chosen=str(form["reward_version"].value() or ""))
    context = {
        "form": form,
        "groups": form.groups(),
        "source": form.source,
        "source_is_gone": form["start_from"].value() and form.source is None,
        "datasets": datasets,
        "chosen_dataset": _chosen(form, "dataset_version", datasets),
        "rewards": rewards,
        "chosen_reward": _chosen(form, "reward_version", rewards),
        "shown": SHOWN,
        "base_models": list(form.fields["base_model"].queryset),  # type: ignore[attr-defined]
        "rows_choices": ROWS,
        "environment_types": ENVIRONMENT_TYPES,
        "algorithms": ALGORITHMS,
        "tasks": TASKS,
        "presets": PRESETS,
        "preset_values": {preset["id"]: preset["values"] for preset in PRESETS},
        "when": {name: {"name": when.name, "values": when.values} for name, when in WHEN.items()},
        "folds_open": form.is_folded_open(),
        # One key per shown form: sending it twice makes one job.
        "idempotency_key": request.POST.get("idempotency_key") or uuid.uuid4().hex,
    }
    return render(request, "jobs/new.html", context, status=400 if form.errors else 200)


def _chosen(form: JobForm, name: str, found: list[Any]) -> str:
    """What is chosen; the only one there is, where nothing is."""
    value = form[name].value()
    if not value and len(found) == 1 and not form.is_bound:
        return str(found[0].pk)
    return str(value or "")
