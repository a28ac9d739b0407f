"""What the command palette finds: objects of the tenant by name, or by the id somebody pastes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse, JsonResponse
from django.urls import reverse

from portal.adapters.selectors import list_adapter_versions
from portal.datasets.selectors import list_datasets
from portal.jobs.selectors import list_jobs
from portal.pages.http import TenantRequest, tenant_page
from portal.rewards.selectors import list_reward_functions
from portal.tenants.models import Tenant

LIMIT = 6
"""Of each kind."""
SHORTEST = 2


@dataclass(frozen=True)
class Found:
    kind: str
    title: str
    detail: str
    url: str


@dataclass(frozen=True)
class Kind:
    name: str
    select: Callable[[Tenant], QuerySet[Any]]
    field: str
    """Searched, in any case."""
    route: str
    detail: Callable[[Any], str]


KINDS = [
    Kind("Job", list_jobs, "name", "jobs:detail", lambda job: job.state_label),
    Kind("Dataset", list_datasets, "name", "datasets:detail", lambda dataset: ""),
    Kind("Reward", list_reward_functions, "name", "rewards:detail", lambda reward: ""),
    Kind("Adapter", list_adapter_versions, "name", "adapters:detail", lambda adapter: adapter.job.name),
]


def find_objects(tenant: Tenant, text: str) -> list[Found]:
    """Those whose name holds ``text`` or whose id it is, newest first, at most ``LIMIT`` of each kind."""
    text = text.strip()
    if len(text) < SHORTEST or "\x00" in text:
        return []
    object_id = _as_id(text)
    found = []
    for kind in KINDS:
        condition = {"pk": object_id} if object_id else {f"{kind.field}__icontains": text}
        for item in kind.select(tenant).filter(**condition).order_by("-created_at")[:LIMIT]:
            found.append(Found(kind.name, item.name, kind.detail(item), reverse(kind.route, args=[item.pk])))
    return found


def _as_id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


@tenant_page
def search(request: TenantRequest) -> HttpResponse:
    found = find_objects(request.tenant, request.GET.get("q", ""))
    return JsonResponse({"results": [asdict(item) for item in found]})
