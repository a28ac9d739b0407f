"""Pages of adapter versions."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.text import slugify

from portal.adapters.models import AdapterVersion
from portal.adapters.selectors import get_adapter_version, list_adapter_versions
from portal.adapters.services import create_download_link
from portal.jobs.selectors import get_job
from portal.pages.http import TenantRequest, page_number, tenant_page, uuid_or_404

PAGE_SIZE = 25
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values vLLM takes for --max-lora-rank."""


@tenant_page
def adapter_list(request: TenantRequest) -> HttpResponse:
    """Results of jobs first, then the versions on the way to them; ``?job=<id>`` shows one job's."""
    job = get_job(request.tenant, uuid_or_404(request.GET["job"])) if request.GET.get("job") else None
    adapters = list_adapter_versions(request.tenant, job.pk if job else None).filter(removed=False)
    adapters = adapters.select_related("job__base_model").order_by("-final", "-created_at")
    page = Paginator(adapters, PAGE_SIZE).get_page(page_number(request))
    return render(request, "adapters/list.html", {"page": page, "job": job})


@tenant_page
def adapter_detail(request: TenantRequest, adapter_id: uuid.UUID) -> HttpResponse:
    adapter = get_adapter_version(request.tenant, adapter_id)
    base_model = adapter.job.base_model
    context = {
        "adapter": adapter,
        "base_model": base_model,
        "base_name": base_model.pk if base_model.source == base_model.Source.BUNDLED else base_model.location,
        "folder": f"{slugify(adapter.job.name) or 'adapter'}-v{adapter.version}",
        "vllm_rank": next((rank for rank in VLLM_RANKS if rank >= adapter.rank), adapter.rank),
        "link": None if adapter.removed else _link(request, adapter),
        "link_minutes": settings.DOWNLOAD_LINK_SECONDS // 60,
    }
    return render(request, "adapters/detail.html", context)


@tenant_page
def adapter_download(request: TenantRequest, adapter_id: uuid.UUID) -> HttpResponse:
    """A fresh signed link, followed at once."""
    adapter = get_adapter_version(request.tenant, adapter_id)
    return redirect(create_download_link(adapter=adapter, user=request.user))


def _link(request: TenantRequest, adapter: AdapterVersion) -> str:
    return request.build_absolute_uri(create_download_link(adapter=adapter, user=request.user))
