"""Pages of reward functions."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render

from portal.errors import ServiceError
from portal.jobs.selectors import list_jobs
from portal.pages.http import TenantRequest, page_number, tenant_page, uuid_or_404, writer_page
from portal.rewards.forms import (
    BY_TYPE,
    GRADERS,
    MIX,
    PartFormSet,
    RewardForm,
    add_grader_errors,
    grader_initial,
    pretty,
    to_spec,
)
from portal.rewards.models import RewardVersion
from portal.rewards.selectors import (
    get_reward_function,
    get_reward_version,
    list_reward_functions,
    list_reward_versions,
)
from portal.rewards.services import create_reward_version

PAGE_SIZE = 25
SHOWN_JOBS = 10
FIRST_PARTS = [
    {"part_name": "correct", "weight": 1.0, "type": "numeric"},
    {"part_name": "short", "weight": 0.2, "type": "brevity"},
]
"""What a new mix starts with: an example to change."""


@tenant_page
def reward_list(request: TenantRequest) -> HttpResponse:
    page = Paginator(list_reward_functions(request.tenant), PAGE_SIZE).get_page(page_number(request))
    return render(request, "rewards/list.html", {"page": page, "kinds": _titles()})


@writer_page
def reward_new(request: TenantRequest) -> HttpResponse:
    """A new reward function, or (``?from=<version>``) a new version that starts from an earlier one."""
    if request.method != "POST":
        earlier = request.GET.get("from")
        version = get_reward_version(request.tenant, uuid_or_404(earlier)) if earlier else None
        return _show(request, *_blank(version))
    form, parts = RewardForm(request.POST), PartFormSet(request.POST, prefix="parts")
    mixed = request.POST.get("type") == MIX.type
    if not form.is_valid() or (mixed and not parts.is_valid()):
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


def _blank(earlier: RewardVersion | None) -> tuple[RewardForm, Any]:
    if earlier is None:
        return RewardForm(), PartFormSet(prefix="parts", initial=FIRST_PARTS)
    grader = earlier.spec["grader"]
    parts = [
        {"part_name": part["name"], "weight": part["weight"], **grader_initial(part["grader"])}
        for part in grader.get("parts", [])
    ]
    initial = {
        "name": earlier.reward_function.name,
        "timeout_seconds": earlier.spec["timeout_seconds"],
        **grader_initial(grader),
    }
    return RewardForm(initial=initial), PartFormSet(prefix="parts", initial=parts or FIRST_PARTS)


def _show(request: TenantRequest, form: RewardForm, parts: Any) -> HttpResponse:
    wrong = bool(form.errors) or (parts.is_bound and any(part.errors for part in parts))
    context = {"form": form, "parts": parts, "graders": [*GRADERS, MIX], "part_graders": GRADERS}
    return render(request, "rewards/new.html", context, status=400 if wrong else 200)


@tenant_page
def reward_detail(request: TenantRequest, reward_id: uuid.UUID) -> HttpResponse:
    reward = get_reward_function(request.tenant, reward_id)
    versions = list(list_reward_versions(request.tenant, reward.pk))
    chosen = next((v for v in versions if str(v.number) == request.GET.get("version")), versions[0])
    context = {
        "reward": reward,
        "versions": versions,
        "version": chosen,
        "described": _describe(chosen),
        "spec": pretty(chosen.spec),
        "kinds": _titles(),
        "jobs": list_jobs(request.tenant).filter(reward_version__reward_function=reward)[:SHOWN_JOBS],
    }
    return render(request, "rewards/detail.html", context)


def _titles() -> dict[str, str]:
    return {choice.type: choice.title for choice in [*GRADERS, MIX]}


def _describe(version: RewardVersion) -> list[dict[str, Any]]:
    """The graders of a version, in words: one, or the parts of a mix with their share of the total."""
    grader = version.spec["grader"]
    parts = grader.get("parts") or [{"name": "", "weight": 1.0, "grader": grader}]
    total = sum(part["weight"] for part in parts)
    return [
        {
            "name": part["name"],
            "weight": f"{part['weight']:g}",
            "share": part["weight"] / total,
            "kind": BY_TYPE[part["grader"]["type"]],
            "options": [
                (option.replace("_", " "), pretty(value) if isinstance(value, dict) else value)
                for option, value in part["grader"].items()
                if option != "type"
            ],
        }
        for part in parts
    ]
