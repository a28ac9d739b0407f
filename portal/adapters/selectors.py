"""Reads of adapter versions; every function takes the tenant first and sees nothing else's."""

from __future__ import annotations

import uuid

from django.db.models import QuerySet
from django.http import Http404

from portal.adapters.models import AdapterVersion
from portal.tenants.models import Tenant

CARD_RELATIONS = (
    "job__base_model",
    "job__dataset_version__dataset",
    "job__reward_version__reward_function",
    "job__start_from",
)
"""What the page and the model card of an adapter version name."""


def list_adapter_versions(tenant: Tenant, job_id: uuid.UUID | None = None) -> QuerySet[AdapterVersion]:
    """Newest first, removed ones included; of one job, or of all of the tenant's."""
    versions = AdapterVersion.objects.filter(tenant=tenant).select_related("job")
    if job_id is None:
        return versions.order_by("-created_at")
    return versions.filter(job_id=job_id).order_by("-version")


def list_continuable(tenant: Tenant) -> QuerySet[AdapterVersion]:
    """Those a job can start from."""
    return list_adapter_versions(tenant).filter(removed=False, version__gt=0)


def get_adapter_version(tenant: Tenant, adapter_id: uuid.UUID) -> AdapterVersion:
    """Raises Http404 where the tenant has no such adapter version."""
    adapter = list_adapter_versions(tenant).select_related(*CARD_RELATIONS).filter(pk=adapter_id).first()
    if adapter is None:
        raise Http404("No such adapter version.")
    return adapter
