"""Pages of reward functions."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render

from engine.spec import leaf_graders
from engine.spec.describe import describe
from portal.errors import ServiceError
from portal.jobs.selectors import list_jobs
from portal.pages.http import TenantRequest, page_number, tenant_page, uuid_or_404, writer_page
from portal.rewards.diff import compare
from portal.rewards.examples import EXAMPLES
from portal.rewards.forms import PartFormSet, RewardForm, add_grader_errors, blank_forms, pretty, to_spec
from portal.rewards.graders import KINDS, MIX_TYPE
from portal.rewards.models import RewardVersion
from portal.rewards.selectors import (
    get_reward_function,
    get_reward_version,
    list_reward_functions,
    list_reward_versions,
)
from portal.rewards.services import create_reward_version
from portal.rewards.trial_forms import TrialForm

PAGE_SIZE = 25
SHOWN_JOBS = 10
FIRST_PARTS = EXAMPLES["mix"].spec["grader"]["parts"]
"""What a new mix starts with: an example to change."""


@tenant_page
def reward_list(request: TenantRequest) -> HttpResponse:
    page = Paginator(list_reward_functions(request.tenant), PAGE_SIZE).get_page(page_number(request))
    return render(request, "rewards/list.html", {"page": page})


@writer_page
def reward_new(request: TenantRequest) -> HttpResponse:
    """A new reward function, started from an earlier version (``?from=<id>``), an example (``?example=<slug>``) or
    nothing."""
    if request.method != "POST":
        return _show(request, *_blank(request))
    form, parts = RewardForm(request.POST), PartFormSet(request.POST, prefix="parts")
    mixed = request.POST.get("type") == MIX_TYPE
    valid = form.is_valid()
    if (mixed and not parts.is_valid()) or not valid:
        return _show(request, form, parts)
    try:
        version = create_reward_version(
            tenant=request.tenant, user=request.user, name=form.cleaned_data["name"], spec=to_spec(form, parts)
        )
    except ServiceError as error:
        add_grader_errors(form, parts, error)
        return _show(request, form, parts)
    messages.success(request, f"{version} is saved.")
    return redirect("rewards:detail", version.reward_function_id)


def _blank(request: TenantRequest) -> tuple[RewardForm, Any]:
    if earlier := request.GET.get("from"):
        version = get_reward_version(request.tenant, uuid_or_404(earlier))
        return blank_forms(version.spec, name=version.reward_function.name, parts=FIRST_PARTS)
    slug = request.GET.get("example")
    if slug and slug not in EXAMPLES:
        raise Http404("No such example.")
    return blank_forms(EXAMPLES[slug].spec if slug else None, parts=FIRST_PARTS)


def _show(request: TenantRequest, form: RewardForm, parts: Any) -> HttpResponse:
    wrong = form.is_bound and (form.has_errors or any(part.has_errors for part in parts))
    context = {
        "form": form,
        "parts": parts,
        "wrong": wrong,
        "bench": TrialForm(request.tenant),
        "examples": EXAMPLES.values(),
        "example": request.GET.get("example"),
    }
    return render(request, "rewards/new.html", context, status=400 if wrong else 200)


@tenant_page
def reward_detail(request: TenantRequest, reward_id: uuid.UUID) -> HttpResponse:
    """A version of a reward function (``?version=<number>``; else the latest) and what was done with it."""
    reward = get_reward_function(request.tenant, reward_id)
    versions = list(list_reward_versions(request.tenant, reward.pk).annotate(job_count=Count("jobs")))
    chosen = next((v for v in versions if str(v.number) == request.GET.get("version")), versions[0])
    context = {
        "reward": reward,
        "versions": versions,
        "version": chosen,
        "described": _describe(chosen),
        "formula": chosen.spec["grader"].get("formula"),
        "spec": pretty(chosen.spec),
        "bench": TrialForm(request.tenant),
        "jobs": list_jobs(request.tenant).filter(reward_version=chosen)[:SHOWN_JOBS],
    }
    return render(request, "rewards/detail.html", context)


@tenant_page
def reward_changes(request: TenantRequest, reward_id: uuid.UUID) -> HttpResponse:
    """What changed between two versions (``?from=<number>&to=<number>``; else the last two)."""
    reward = get_reward_function(request.tenant, reward_id)
    versions = list(list_reward_versions(request.tenant, reward.pk))
    later = _by_number(versions, request.GET.get("to"), versions[0])
    before = [version for version in versions if version.number < later.number]
    earlier = _by_number(versions, request.GET.get("from"), before[0] if before else later)
    lines = compare(earlier.spec, later.spec)
    context = {
        "reward": reward,
        "versions": versions,
        "earlier": earlier,
        "later": later,
        "lines": lines,
        "added": sum(line.kind == "added" for line in lines),
        "removed": sum(line.kind == "removed" for line in lines),
    }
    return render(request, "rewards/changes.html", context)


def _by_number(versions: list[RewardVersion], number: str | None, default: RewardVersion) -> RewardVersion:
    return next((version for version in versions if str(version.number) == number), default)


def _describe(version: RewardVersion) -> list[dict[str, Any]]:
    """The graders of a version, in words: one, or the parts of a mix with their share of the total."""
    grader = version.spec["grader"]
    parts = grader.get("parts") or [{"name": "", "weight": 1.0, "grader": grader}]
    total = sum(part["weight"] for part in parts)
    leaves = leaf_graders(version.to_spec().grader)
    return [
        {
            "name": part["name"],
            "weight": f"{part['weight']:g}",
            "share": part["weight"] / total,
            "kind": KINDS[part["grader"]["type"]],
            "text": describe(leaf),
            "options": _options(part["grader"]),
        }
        for part, leaf in zip(parts, leaves, strict=True)
    ]


def _options(grader: dict[str, Any]) -> list[dict[str, Any]]:
    """The options that are not as they are by default, or have none."""
    model = KINDS[grader["type"]].model
    shown = []
    for name, value in grader.items():
        info = model.model_fields[name]
        if name == "type" or (not info.is_required() and value == info.get_default(call_default_factory=True)):
            continue
        text = pretty(value) if isinstance(value, dict | list) else value
        shown.append({"name": name.replace("_", " "), "value": text, "long": "\n" in str(text)})
    return shown
