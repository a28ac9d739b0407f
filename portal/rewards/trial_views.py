"""The test bench: a reward is tried from the page where it is written, or from that of a saved version.

With htmx each answer is the part of the page that shows the trial; without, a page of its own.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from portal.errors import ServiceError
from portal.pages.http import TenantRequest, tenant_page, uuid_or_404, writer_page
from portal.rewards.forms import PartFormSet, RewardForm, add_grader_errors, to_spec
from portal.rewards.graders import MIX_TYPE
from portal.rewards.models import RewardTrial, RewardVersion
from portal.rewards.selectors import get_reward_trial, get_reward_version, trial_cases
from portal.rewards.signal import BINS, read_signal
from portal.rewards.trial_forms import TrialForm
from portal.rewards.trial_services import cancel_reward_trial, start_reward_trial

OPEN_CASES = 3
"""So many rows of a trial are shown unfolded."""
TRACEBACK_LINE = re.compile(r"\bline (\d+)")


@require_POST
@writer_page
def try_reward(request: TenantRequest) -> HttpResponse:
    """Try the reward in the form, or a saved version (``version``), on what the bench says."""
    bench = TrialForm(request.tenant, request.POST)
    chosen = request.POST.get("version")
    version = get_reward_version(request.tenant, uuid_or_404(chosen)) if chosen else None
    form, parts = RewardForm(request.POST), PartFormSet(request.POST, prefix="parts")
    form.fields["name"].required = False  # what is tried needs no name
    spec = None if version else _read_spec(form, parts)
    if (version or spec) and bench.is_valid():
        try:
            trial = _start(request, bench, version, spec)
        except ServiceError as error:
            if any(item.field.startswith(("grader", "timeout_seconds")) for item in error.fields):
                add_grader_errors(form, parts, error)
            else:
                bench.add_trial_errors(error)
        else:
            return _answer(request, trial)
    refusals = _refusals(bench, *([] if version else [form, *form.options.values(), *_part_forms(form, parts)]))
    template = "rewards/_refused.html" if "HX-Request" in request.headers else "rewards/refused.html"
    # htmx puts only successful answers into the page.
    return render(request, template, {"refusals": refusals}, status=200 if "HX-Request" in request.headers else 400)


@tenant_page
def show_trial(request: TenantRequest, trial_id: uuid.UUID) -> HttpResponse:
    return _show(request, get_reward_trial(request.tenant, trial_id))


@require_POST
@writer_page
def cancel_trial(request: TenantRequest, trial_id: uuid.UUID) -> HttpResponse:
    return _answer(request, cancel_reward_trial(tenant=request.tenant, user=request.user, trial_id=trial_id))


def _start(
    request: TenantRequest, bench: TrialForm, version: RewardVersion | None, spec: dict[str, Any] | None
) -> RewardTrial:
    return start_reward_trial(
        tenant=request.tenant,
        user=request.user,
        reward_version=version,
        spec=spec,
        rows=bench.to_rows(),
        sampling=bench.to_sampling(),
    )


def _read_spec(form: RewardForm, parts: Any) -> dict[str, Any] | None:
    """The reward in the form; None where a field cannot even be read."""
    if not form.is_valid():
        return None
    if form.cleaned_data["type"] == MIX_TYPE and not parts.is_valid():
        return None
    return to_spec(form, parts)


def _part_forms(form: RewardForm, parts: Any) -> list[Any]:
    if form["type"].value() != MIX_TYPE or not parts.is_bound or not parts.management_form.is_valid():
        return []
    return [each for part in parts for each in (part, *part.options.values())]


def _refusals(*forms: Any) -> list[dict[str, str]]:
    """Every message of these forms, with the id of its control: the page marks that, too."""
    return [
        {"control": form[name].id_for_label if name in form.fields else "", "message": message}
        for form in forms
        if form.is_bound and getattr(form, "_errors", None)
        for name, messages in form.errors.items()
        for message in messages
    ]


def _answer(request: TenantRequest, trial: RewardTrial) -> HttpResponse:
    return _show(request, trial) if "HX-Request" in request.headers else redirect("rewards:trial", trial.pk)


def _show(request: TenantRequest, trial: RewardTrial) -> HttpResponse:
    cases = trial_cases(trial)
    signal = read_signal(trial.scores)
    context = {
        "trial": trial,
        "cases": [
            {
                "case": case,
                "prompt": case.row["messages"][-1]["content"],
                "scores": [_shown(score) for score in case.scores],
                "open": len(cases) <= OPEN_CASES,
            }
            for case in cases
            if case.scores
        ],
        "signal": signal,
        "bars": _bars(signal.histogram) if signal and signal.count > 1 else [],
    }
    partial = "HX-Request" in request.headers
    return render(request, "rewards/_trial.html" if partial else "rewards/trial.html", context)


def _shown(score: dict[str, Any]) -> dict[str, Any]:
    """A score as templates want it: with its colour's name and, for an error, the line of the reward it is at."""
    lines = TRACEBACK_LINE.findall(score["details"] or score["reason"]) if score["error"] else []
    return {
        **score,
        "reward": score["total"],
        "kind": score["error_kind"].replace("_", " "),
        "line": lines[-1] if lines else "",
        "milliseconds": 1000 * score["seconds"],
    }


def _bars(histogram: list[int]) -> list[dict[str, Any]]:
    """Bars of the histogram in a 100 x 40 box, and what each says."""
    most = max(histogram)
    width = 100 / BINS
    return [
        {
            "x": index * width + 0.6,
            "width": width - 1.2,
            "y": 40 - 40 * count / most,
            "height": 40 * count / most,
            "count": count,
            "range": f"{index / BINS:g} to {(index + 1) / BINS:g}",
        }
        for index, count in enumerate(histogram)
    ]
