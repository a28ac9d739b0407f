"""Pages of webhooks and notifications. A secret is in the answer to the form that made it and nowhere else."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.errors import ServiceError
from portal.pages.http import TenantRequest, add_service_errors, page_number, tenant_page, writer_page
from portal.webhooks import selectors, services
from portal.webhooks.forms import EndpointForm, PreferenceForm
from portal.webhooks.mails import get_preference
from portal.webhooks.models import Endpoint, EventType, State

PAGE_SIZE = 25


@never_cache
@tenant_page
def endpoint_list(request: TenantRequest) -> HttpResponse:
    """The tenant's endpoints, and the form for another."""
    form = EndpointForm(request.POST or None, initial={"events": EventType.values})
    created, secret = None, ""
    if request.method == "POST" and form.is_valid():
        try:
            created, secret = services.create_endpoint(tenant=request.tenant, user=request.user, **form.cleaned_data)
            form = EndpointForm(initial={"events": EventType.values})
        except ServiceError as error:
            add_service_errors(form, error)
    context = {
        "form": form,
        "endpoints": selectors.list_endpoints(request.tenant),
        "created": created,
        "secret": secret,
    }
    return render(request, "webhooks/list.html", context, status=400 if form.errors else 200)


@tenant_page
def endpoint_detail(request: TenantRequest, endpoint_id: uuid.UUID) -> HttpResponse:
    """One endpoint: its settings and the log of what was sent."""
    endpoint = selectors.get_endpoint(request.tenant, endpoint_id)
    initial = {"url": endpoint.url, "description": endpoint.description, "events": endpoint.events}
    form = EndpointForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            services.change_endpoint(
                tenant=request.tenant, user=request.user, endpoint_id=endpoint_id, **form.cleaned_data
            )
        except ServiceError as error:
            add_service_errors(form, error)
        else:
            messages.success(request, "The endpoint is saved.")
            return redirect("webhooks:detail", endpoint_id)
    return _show_endpoint(request, endpoint, form=form, status=400 if form.errors else 200)


def _show_endpoint(request: TenantRequest, endpoint: Endpoint, *, status: int = 200, **more: Any) -> HttpResponse:
    context = {"endpoint": endpoint, **_deliveries_context(request, endpoint), **more}
    return render(request, "webhooks/detail.html", context, status=status)


def _deliveries_context(request: TenantRequest, endpoint: Endpoint) -> dict[str, Any]:
    deliveries = selectors.list_deliveries(request.tenant, endpoint.pk)
    # By their ids first: what is known of the latest attempt is looked up for this page alone, not for those before it.
    page = Paginator(deliveries.values_list("pk", flat=True), PAGE_SIZE).get_page(page_number(request))
    shown = list(deliveries.filter(pk__in=list(page)))
    return {"page": page, "deliveries": shown, "is_waiting": any(each.state == State.PENDING for each in shown)}


@tenant_page
def endpoint_deliveries(request: TenantRequest, endpoint_id: uuid.UUID) -> HttpResponse:
    """The log alone, for the page that waits for a message to arrive."""
    endpoint = selectors.get_endpoint(request.tenant, endpoint_id)
    return render(
        request, "webhooks/_deliveries.html", {"endpoint": endpoint, **_deliveries_context(request, endpoint)}
    )


@never_cache
@writer_page
@require_POST
def endpoint_rotate(request: TenantRequest, endpoint_id: uuid.UUID) -> HttpResponse:
    endpoint, secret = services.rotate_secret(tenant=request.tenant, user=request.user, endpoint_id=endpoint_id)
    initial = {"url": endpoint.url, "description": endpoint.description, "events": endpoint.events}
    return _show_endpoint(request, endpoint, form=EndpointForm(initial=initial), secret=secret)


@writer_page
@require_POST
def endpoint_switch(request: TenantRequest, endpoint_id: uuid.UUID) -> HttpResponse:
    """On or off (``enabled`` = 1 or 0)."""
    enabled = request.POST.get("enabled") == "1"
    services.change_endpoint(tenant=request.tenant, user=request.user, endpoint_id=endpoint_id, enabled=enabled)
    messages.success(request, "The endpoint is switched on." if enabled else "The endpoint is switched off.")
    return redirect("webhooks:detail", endpoint_id)


@writer_page
@require_POST
def endpoint_ping(request: TenantRequest, endpoint_id: uuid.UUID) -> HttpResponse:
    services.send_ping(tenant=request.tenant, user=request.user, endpoint_id=endpoint_id)
    messages.success(request, "A test message is on its way.")
    return redirect("webhooks:detail", endpoint_id)


@writer_page
@require_POST
def endpoint_delete(request: TenantRequest, endpoint_id: uuid.UUID) -> HttpResponse:
    services.delete_endpoint(tenant=request.tenant, user=request.user, endpoint_id=endpoint_id)
    messages.success(request, "The endpoint is deleted; nothing more is sent there.")
    return redirect("webhooks:list")


@tenant_page
def delivery_detail(request: TenantRequest, endpoint_id: uuid.UUID, delivery_id: uuid.UUID) -> HttpResponse:
    """One message: what was sent, and every attempt."""
    delivery = selectors.get_delivery(request.tenant, endpoint_id, delivery_id)
    body = json.dumps(json.loads(delivery.body), indent=2, ensure_ascii=False)
    context = {
        "endpoint": delivery.endpoint,
        "delivery": delivery,
        "body": body,
        "is_due": delivery.next_attempt_at <= timezone.now(),
    }
    return render(request, "webhooks/delivery.html", context)


@writer_page
@require_POST
def delivery_redeliver(request: TenantRequest, endpoint_id: uuid.UUID, delivery_id: uuid.UUID) -> HttpResponse:
    services.redeliver(tenant=request.tenant, user=request.user, endpoint_id=endpoint_id, delivery_id=delivery_id)
    messages.success(request, "The message is on its way again.")
    return redirect("webhooks:delivery", endpoint_id, delivery_id)


@tenant_page
def notifications(request: TenantRequest) -> HttpResponse:
    """What the member wants to be told by e-mail in this tenant."""
    preference = get_preference(request.tenant, request.user.pk)
    names = ("jobs", "on_success", "on_failure", "on_quota")
    form = PreferenceForm(request.POST or None, initial={name: getattr(preference, name) for name in names})
    if request.method == "POST" and form.is_valid():
        services.change_preference(tenant=request.tenant, user=request.user, **form.cleaned_data)
        messages.success(request, "Your notifications are saved.")
        return redirect("webhooks:notifications")
    return render(request, "webhooks/notifications.html", {"form": form}, status=400 if form.errors else 200)
