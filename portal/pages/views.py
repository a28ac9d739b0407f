"""Home: what to do first, and what is running."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse

from engine.events import TERMINAL_STATUSES
from portal.adapters.selectors import list_adapter_versions
from portal.datasets.selectors import list_datasets
from portal.jobs.history import reward_histories
from portal.jobs.selectors import list_jobs
from portal.pages.http import TenantRequest, tenant_page
from portal.rewards.selectors import list_reward_functions
from portal.tenants.models import Tenant
from portal.usage.meters import list_limited_meters

SHOWN_FINISHED = 5


@tenant_page
def home(request: TenantRequest) -> HttpResponse:
    checklist = _checklist(request.tenant)
    context = {
        **_jobs_context(request.tenant),
        "checklist": checklist,
        "checklist_done": all(item["done"] for item in checklist),
        "checklist_count": sum(item["done"] for item in checklist),
        "meters": list_limited_meters(request.tenant),
    }
    return render(request, "pages/home.html", context)


@tenant_page
def home_jobs(request: TenantRequest) -> HttpResponse:
    """The part of the page that changes while jobs run."""
    return render(request, "pages/_home_jobs.html", _jobs_context(request.tenant))


def _jobs_context(tenant: Tenant) -> dict[str, Any]:
    jobs = list_jobs(tenant)
    active = list(jobs.exclude(status__in=TERMINAL_STATUSES))
    finished = list(jobs.filter(status__in=TERMINAL_STATUSES)[:SHOWN_FINISHED])
    histories = reward_histories([*active, *finished])
    return {
        "active_jobs": [{"job": job, "rewards": histories[job.pk]} for job in active],
        "finished_jobs": [{"job": job, "rewards": histories[job.pk]} for job in finished],
    }


def _checklist(tenant: Tenant) -> list[dict[str, Any]]:
    """The way to a first adapter; the first item that is not done is the one to do next."""
    items: list[dict[str, Any]] = [
        {
            "title": "Upload a dataset",
            "text": "Prompts with reference answers, as JSON lines. Part of it is held out to measure progress.",
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
            "done": list_jobs(tenant).exists(),
            "href": reverse("jobs:new"),
            "action": "Start a job",
        },
        {
            "title": "Download the adapter",
            "text": "A LoRA adapter as safetensors, ready for PEFT and vLLM.",
            "done": list_adapter_versions(tenant).filter(final=True, removed=False).exists(),
            "href": reverse("jobs:list"),
            "action": "Watch the job",
        },
    ]
    following = next((item for item in items if not item["done"]), None)
    for item in items:
        item["next"] = item is following
    return items
