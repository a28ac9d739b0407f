"""Home: what to do first, what needs attention, what is running, and what came out of it."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from engine.events import TERMINAL_STATUSES
from portal.adapters.selectors import list_adapter_versions
from portal.datasets.selectors import list_datasets
from portal.errors import ServiceError
from portal.jobs.history import reward_histories
from portal.jobs.models import OPEN_STATUSES
from portal.jobs.selectors import list_jobs
from portal.pages.attention import list_attention
from portal.pages.http import TenantRequest, in_words, tenant_page, writer_page
from portal.pages.sample import create_sample_project
from portal.rewards.selectors import list_reward_functions
from portal.tenants.models import Tenant
from portal.usage.meters import list_limited_meters

SHOWN_ACTIVE = 12
SHOWN_FINISHED = 5
SHOWN_ADAPTERS = 4


@tenant_page
def home(request: TenantRequest) -> HttpResponse:
    return render(request, "pages/home.html", _context(request))


@tenant_page
def home_live(request: TenantRequest) -> HttpResponse:
    """The part of the page that changes by itself: all below its title."""
    return render(request, "pages/_home_live.html", _context(request))


@require_POST
@writer_page
def home_sample(request: TenantRequest) -> HttpResponse:
    """Start the sample project and go to its job."""
    try:
        project = create_sample_project(tenant=request.tenant, user=request.user)
    except ServiceError as error:
        messages.error(request, in_words(error))
        return redirect("home")
    messages.success(request, "The sample project is under way: a dataset, a reward and this job.")
    return redirect("jobs:detail", project.job.pk)


def _context(request: TenantRequest) -> dict[str, Any]:
    tenant = request.tenant
    jobs = list_jobs(tenant)
    unfinished = jobs.filter(status__in=OPEN_STATUSES)
    active = list(unfinished[:SHOWN_ACTIVE])
    more = unfinished.count() - len(active) if len(active) == SHOWN_ACTIVE else 0
    finished = list(jobs.filter(status__in=TERMINAL_STATUSES)[:SHOWN_FINISHED])
    histories = reward_histories([*active, *finished])
    results = list_adapter_versions(tenant).filter(final=True, removed=False)
    adapters = results.order_by("-final", "-created_at")[:SHOWN_ADAPTERS]  # the order of an index
    meters = list_limited_meters(tenant)
    checklist = _checklist(tenant, has_jobs=bool(active or finished), has_adapters=bool(adapters))
    return {
        "active_jobs": [{"job": job, "rewards": histories[job.pk]} for job in active],
        "more_active_jobs": more,
        "finished_jobs": [{"job": job, "rewards": histories[job.pk]} for job in finished],
        "adapters": adapters,
        "attention": list_attention(tenant, request.user, meters),
        "meters": meters,
        "checklist": checklist,
        "checklist_done": all(item["done"] for item in checklist),
        "checklist_count": sum(item["done"] for item in checklist),
    }


def _checklist(tenant: Tenant, *, has_jobs: bool, has_adapters: bool) -> list[dict[str, Any]]:
    """The way to a first adapter; the first item that is not done is the one to do next."""
    items: list[dict[str, Any]] = [
        {
            "title": "Upload a dataset",
            "text": "Prompts with reference answers: JSON lines, CSV or Parquet. Part of it is held out to measure "
            "progress.",
            "done": list_datasets(tenant).exists(),
            "href": reverse("datasets:new"),
            "action": "Upload a dataset",
        },
        {
            "title": "Choose a reward",
            "text": "How an answer is scored: exact match, a number, a pattern, a JSON schema, or a mix.",
            "done": list_reward_functions(tenant).exists(),
            "href": reverse("rewards:new"),
            "action": "Create a reward",
        },
        {
            "title": "Start a job",
            "text": "The model answers your prompts, the reward scores the answers, training favours the better.",
            "done": has_jobs,
            "href": reverse("jobs:new"),
            "action": "Start a job",
        },
        {
            "title": "Download the adapter",
            "text": "A LoRA adapter as safetensors, ready for PEFT and vLLM.",
            "done": has_adapters,
            "href": reverse("jobs:list"),
            "action": "Watch the job",
        },
    ]
    following = next((item for item in items if not item["done"]), None)
    for item in items:
        item["next"] = item is following
    return items
