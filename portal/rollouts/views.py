"""Pages of a job's rollouts: found, looked at side by side, and the same prompt early against late."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpResponse
from django.shortcuts import render

from portal.jobs.models import Job
from portal.jobs.selectors import get_job
from portal.pages.http import TenantRequest, tenant_page
from portal.rollouts.forms import LARGEST, FilterForm
from portal.rollouts.models import Episode, RolloutGroup
from portal.rollouts.selectors import (
    Filters,
    count_occurrences,
    get_group,
    list_groups,
    list_occurrences,
    neighbours,
    summarize_steps,
)


@tenant_page
def group_list(request: TenantRequest, job_id: uuid.UUID) -> HttpResponse:
    """Newest first; ``?step=&min_reward=&max_reward=&failed=&q=&prompt=`` narrow, ``before`` is the cursor."""
    job = get_job(request.tenant, job_id)
    form = FilterForm(request.GET)
    context: dict[str, Any] = {"job": job, "form": form, "steps": summarize_steps(job)}
    if not form.is_valid():
        return render(request, "rollouts/list.html", context, status=400)
    filters = form.to_filters()
    page = list_groups(job, filters, before=form.cleaned_data["before"])
    counts = count_occurrences(job, page.groups)
    narrowing = {name: value for name, value in request.GET.items() if value and name in form.fields}
    context |= {
        "page": page,
        "items": [
            {
                "group": group,
                "episodes": [(episode, _matches(group, episode, filters)) for episode in group.episodes.all()],
                "occurrences": counts.get(group.prompt_digest, 1),
            }
            for group in page.groups
        ],
        "filters": filters,
        "next_query": urlencode({**narrowing, "before": page.before}) if page.before else "",
        "is_first": "before" not in narrowing,
        "first_query": urlencode({name: value for name, value in narrowing.items() if name != "before"}),
    }
    return render(request, "rollouts/list.html", context)


def _matches(group: RolloutGroup, episode: Episode, filters: Filters) -> bool:
    """Among the episodes of its group, this is one the filters are about."""
    if filters.min_reward is not None and episode.reward < filters.min_reward:
        return False
    if filters.max_reward is not None and episode.reward > filters.max_reward:
        return False
    if filters.errors and not episode.error:
        return False
    return filters.text.lower() in f"{group.prompt}\n{episode.completion}\n{episode.reason}".lower()


@tenant_page
def group_detail(request: TenantRequest, job_id: uuid.UUID, seq: int, position: int | None = None) -> HttpResponse:
    """The episodes of one prompt side by side; with ``position`` one of them is marked."""
    job = get_job(request.tenant, job_id)
    group = _find(job, seq)
    episodes = list(group.episodes.all())
    if position is not None and position not in [episode.position for episode in episodes]:
        raise Http404("No such episode.")
    earlier, later = neighbours(group)
    context = {
        "job": job,
        "group": group,
        "episodes": episodes,
        "marked": position,
        "earlier": earlier,
        "later": later,
        "occurrences": count_occurrences(job, [group])[group.prompt_digest],
    }
    return render(request, "rollouts/group.html", context)


@tenant_page
def prompt_over_time(request: TenantRequest, job_id: uuid.UUID, seq: int) -> HttpResponse:
    """One prompt early and late: the first and the last time it was drawn, or ``?early=<seq>&late=<seq>``."""
    job = get_job(request.tenant, job_id)
    group = _find(job, seq)
    occurrences = list_occurrences(job, group.prompt_digest)
    early, late = (
        _chosen(request.GET.get(name, ""), occurrences, default)
        for name, default in (("early", occurrences[0]), ("late", occurrences[-1]))
    )
    context = {
        "job": job,
        "group": group,
        "occurrences": occurrences,
        "rewards": [each.reward_mean or 0.0 for each in occurrences],
        "sides": [("early", "Early", _find(job, early.seq)), ("late", "Late", _find(job, late.seq))],
        "early": early,
        "late": late,
    }
    return render(request, "rollouts/over_time.html", context)


def _find(job: Job, seq: int) -> RolloutGroup:
    if seq > LARGEST:  # no database compares with it
        raise Http404("No such group.")
    return get_group(job, seq)


def _chosen(seq: str, occurrences: list[RolloutGroup], default: RolloutGroup) -> RolloutGroup:
    return next((each for each in occurrences if str(each.seq) == seq), default)
