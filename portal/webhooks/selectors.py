"""Reads of endpoints and deliveries; every function takes the tenant first and sees nothing else's."""

from __future__ import annotations

import uuid

from django.db.models import OuterRef, QuerySet, Subquery
from django.http import Http404

from portal.tenants.models import Tenant
from portal.webhooks.models import Attempt, Delivery, Endpoint


def list_endpoints(tenant: Tenant) -> QuerySet[Endpoint]:
    """First made first; each with ``last_state`` and ``last_at`` of its latest delivery."""
    latest = Delivery.objects.filter(endpoint=OuterRef("pk")).order_by("-created_at")
    return Endpoint.objects.filter(tenant=tenant).annotate(
        last_state=Subquery(latest.values("state")[:1]), last_at=Subquery(latest.values("created_at")[:1])
    )


def get_endpoint(tenant: Tenant, endpoint_id: uuid.UUID) -> Endpoint:
    """Raises Http404 where the tenant has no such endpoint."""
    endpoint = Endpoint.objects.filter(tenant=tenant, pk=endpoint_id).first()
    if endpoint is None:
        raise Http404("No such webhook endpoint.")
    return endpoint


def list_deliveries(tenant: Tenant, endpoint_id: uuid.UUID) -> QuerySet[Delivery]:
    """Newest first; each with the answer's status and the duration of its latest attempt. Http404 where foreign."""
    endpoint = get_endpoint(tenant, endpoint_id)
    latest = Attempt.objects.filter(delivery=OuterRef("pk")).order_by("-at", "-id")
    return Delivery.objects.filter(endpoint=endpoint).annotate(
        status_code=Subquery(latest.values("status_code")[:1]),
        duration_ms=Subquery(latest.values("duration_ms")[:1]),
        error=Subquery(latest.values("error")[:1]),
    )


def get_delivery(tenant: Tenant, endpoint_id: uuid.UUID, delivery_id: uuid.UUID) -> Delivery:
    """Raises Http404 where the tenant has no such delivery."""
    found = list_deliveries(tenant, endpoint_id).filter(pk=delivery_id).select_related("endpoint")
    delivery = found.prefetch_related("attempts").first()
    if delivery is None:
        raise Http404("No such delivery.")
    return delivery
