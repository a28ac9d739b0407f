"""Pages of adapter versions."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.text import slugify

from portal.adapters.card import render_card
from portal.adapters.models import AdapterVersion
from portal.adapters.selectors import get_adapter_version, list_adapter_versions
from portal.adapters.services import create_download_link
from portal.adapters.snippets import render_generate, render_merge, render_serve
from portal.jobs.selectors import get_job
from portal.pages.http import TenantRequest, page_number, tenant_page, uuid_or_404
from portal.progress.selectors import version_metrics

PAGE_SIZE = 25


@tenant_page
def adapter_list(request: TenantRequest) -> HttpResponse:
    """Results of jobs first, then the versions on the way to them; ``?job=<id>`` shows one job's."""
    job = get_job(request.tenant, uuid_or_404(request.GET["job"])) if request.GET.get("job") else None
    adapters = list_adapter_versions(request.tenant, job.pk if job else None).filter(removed=False)
    adapters = adapters.select_related("job__base_model").order_by("-final", "-created_at")
    page = Paginator(adapters, PAGE_SIZE).get_page(page_number(request))
    metrics = version_metrics(page)
    items = [(adapter, metrics[adapter.pk]) for adapter in page]
    return render(request, "adapters/list.html", {"page": page, "items": items, "job": job})


@tenant_page
def adapter_detail(request: TenantRequest, adapter_id: uuid.UUID) -> HttpResponse:
    adapter = get_adapter_version(request.tenant, adapter_id)
    folder = f"{slugify(adapter.job.name) or 'adapter'}-v{adapter.version}"
    context = {
        "adapter": adapter,
        "base_model": adapter.job.base_model,
        "metrics": version_metrics([adapter])[adapter.pk],
        "folder": folder,
        "card": render_card(adapter),
        "link": None if adapter.removed else _link(request, adapter),
        "link_minutes": settings.DOWNLOAD_LINK_SECONDS // 60,
        "snippets": [
            ("peft", "With PEFT", "loads the adapter and answers a prompt", render_generate(adapter, folder)),
            ("vllm", "With vLLM", "serves it and asks it", render_serve(adapter, folder)),
            ("merge", "Merged", "a model of its own, without PEFT", render_merge(adapter, folder)),
        ],
    }
    return render(request, "adapters/detail.html", context)


@tenant_page
def adapter_download(request: TenantRequest, adapter_id: uuid.UUID) -> HttpResponse:
    """A fresh signed link, followed at once."""
    adapter = get_adapter_version(request.tenant, adapter_id)
    return redirect(create_download_link(adapter=adapter, user=request.user))


def _link(request: TenantRequest, adapter: AdapterVersion) -> str:
    return request.build_absolute_uri(create_download_link(adapter=adapter, user=request.user))
