"""Writes of endpoints, of deliveries asked for by people, and of what members want to be told."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from portal.audit.services import record_change
from portal.errors import Conflict, FieldError, InvalidInput, QuotaExceeded
from portal.sealing import get_sealer
from portal.tenants.models import Tenant
from portal.tenants.selectors import get_membership
from portal.tenants.services import require_writer
from portal.webhooks.addresses import fault_of
from portal.webhooks.mails import get_preference
from portal.webhooks.models import Delivery, Endpoint, EventType, JobScope, NotificationPreference, State
from portal.webhooks.occurrences import make_ping
from portal.webhooks.selectors import get_delivery, get_endpoint
from portal.webhooks.signing import make_secret
from portal.webhooks.wake import wake_deliveries

AUDITED = ("url", "events", "description", "enabled")
MAX_ENDPOINTS = 20
OLD_SECRET_VALID = timedelta(hours=24)
"""After a rotation messages are signed with both secrets for so long."""


def create_endpoint(
    *, tenant: Tenant, user: User, url: str, events: Iterable[str], description: str = ""
) -> tuple[Endpoint, str]:
    """Return the endpoint and its secret, which is not shown again.

    Raises InvalidInput, QuotaExceeded, NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    values = _validated(url=url, events=events, description=description)
    with transaction.atomic():
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        if Endpoint.objects.filter(tenant=tenant).count() >= MAX_ENDPOINTS:
            raise QuotaExceeded(f"{tenant.name} has {MAX_ENDPOINTS} endpoints, the limit.", hint="Delete one first.")
        secret = make_secret()
        sealed = get_sealer().seal(secret)
        endpoint = Endpoint.objects.create(tenant=tenant, created_by_id=user.pk, secret=sealed, **values)
        record_change(tenant=tenant, user=user, action="webhook.created", target=endpoint, after=values)
    return endpoint, secret


def change_endpoint(
    *,
    tenant: Tenant,
    user: User,
    endpoint_id: uuid.UUID,
    url: str | None = None,
    events: Iterable[str] | None = None,
    description: str | None = None,
    enabled: bool | None = None,
) -> Endpoint:
    """Change what is given. Switching it on again forgets earlier failures.

    Raises InvalidInput, NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        endpoint = _lock_endpoint(tenant, endpoint_id)
        before = {name: getattr(endpoint, name) for name in AUDITED}
        values = _validated(
            url=endpoint.url if url is None else url,
            events=endpoint.events if events is None else events,
            description=endpoint.description if description is None else description,
        )
        for name, value in values.items():
            setattr(endpoint, name, value)
        if enabled and not endpoint.enabled:
            endpoint.disabled_reason, endpoint.failing_since = "", None
        if enabled is False and endpoint.enabled:
            endpoint.disabled_reason = "Switched off by a member."
        if enabled is not None:
            endpoint.enabled = enabled
        endpoint.save()
        after = {name: getattr(endpoint, name) for name in AUDITED}
        record_change(tenant=tenant, user=user, action="webhook.changed", target=endpoint, before=before, after=after)
    return endpoint


def rotate_secret(*, tenant: Tenant, user: User, endpoint_id: uuid.UUID) -> tuple[Endpoint, str]:
    """Return the endpoint and its new secret; the old one signs too for ``OLD_SECRET_VALID``."""
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        endpoint = _lock_endpoint(tenant, endpoint_id)
        secret = make_secret()
        endpoint.old_secret, endpoint.secret = endpoint.secret, get_sealer().seal(secret)
        endpoint.old_secret_until = timezone.now() + OLD_SECRET_VALID
        endpoint.save(update_fields=["secret", "old_secret", "old_secret_until"])
        record_change(tenant=tenant, user=user, action="webhook.secret_rotated", target=endpoint)
    return endpoint, secret


def delete_endpoint(*, tenant: Tenant, user: User, endpoint_id: uuid.UUID) -> None:
    """With its deliveries; nothing more is sent there."""
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        endpoint = _lock_endpoint(tenant, endpoint_id)
        before = {name: getattr(endpoint, name) for name in AUDITED}
        record_change(tenant=tenant, user=user, action="webhook.deleted", target=endpoint, before=before)
        endpoint.delete()


def send_ping(*, tenant: Tenant, user: User, endpoint_id: uuid.UUID) -> Delivery:
    """Put a test message on its way. Raises Conflict for an endpoint that is switched off, NotAllowed, Http404."""
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        endpoint = get_endpoint(tenant, endpoint_id)
        _require_enabled(endpoint)
        delivery = make_ping(endpoint)
        delivery.save()
        record_change(tenant=tenant, user=user, action="webhook.tested", target=endpoint)
        transaction.on_commit(wake_deliveries)
    return delivery


def redeliver(*, tenant: Tenant, user: User, endpoint_id: uuid.UUID, delivery_id: uuid.UUID) -> Delivery:
    """Send a message again, with its id and body, and with all its tries. Raises Conflict while it is on its way or
    the endpoint is switched off, NotAllowed, Http404."""
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        delivery = get_delivery(tenant, endpoint_id, delivery_id)
        _require_enabled(delivery.endpoint)
        finished = Delivery.objects.filter(pk=delivery.pk).exclude(state=State.PENDING)
        if not finished.update(state=State.PENDING, tries=0, next_attempt_at=timezone.now(), finished_at=None):
            raise Conflict("This message is on its way already.", hint="Wait for its next try.")
        label = f"{delivery.event_type} to {delivery.endpoint.url}"
        record_change(tenant=tenant, user=user, action="webhook.redelivered", target=delivery, label=label)
        transaction.on_commit(wake_deliveries)
    return get_delivery(tenant, endpoint_id, delivery_id)


def change_preference(
    *, tenant: Tenant, user: User, jobs: str, on_success: bool, on_failure: bool, on_quota: bool
) -> NotificationPreference:
    """What the member wants to be told by e-mail; every role may choose for itself. Raises InvalidInput, Http404."""
    if get_membership(tenant, user) is None:
        raise Http404("No such tenant.")
    if jobs not in JobScope.values:
        message = f"must be one of {', '.join(JobScope.values)}"
        raise InvalidInput("The preferences were not changed.", fields=[FieldError("jobs", message)])
    chosen = {"jobs": jobs, "on_success": on_success, "on_failure": on_failure, "on_quota": on_quota}
    with transaction.atomic():
        known = get_preference(tenant, user.pk)
        before = {name: getattr(known, name) for name in chosen}
        preference, _ = NotificationPreference.objects.update_or_create(tenant=tenant, user_id=user.pk, defaults=chosen)
        record_change(
            tenant=tenant,
            user=user,
            action="notifications.changed",
            target=preference,
            label=user.get_username(),
            before=before,
            after=chosen,
        )
    return preference


def _lock_endpoint(tenant: Tenant, endpoint_id: uuid.UUID) -> Endpoint:
    endpoint = Endpoint.objects.select_for_update().filter(tenant=tenant, pk=endpoint_id).first()
    if endpoint is None:
        raise Http404("No such webhook endpoint.")
    return endpoint


def _require_enabled(endpoint: Endpoint) -> None:
    if not endpoint.enabled:
        raise Conflict("This endpoint is switched off.", hint="Switch it on first.")


def _validated(*, url: str, events: Iterable[str], description: str) -> dict[str, object]:
    url, description, chosen = url.strip(), description.strip(), set(events)
    errors = []
    if not url or len(url) > 2000:
        errors.append(FieldError("url", "Give an address of at most 2000 characters."))
    elif fault := fault_of(url, allow_private=settings.WEBHOOKS_ALLOW_PRIVATE):
        errors.append(FieldError("url", fault))
    if not chosen or not chosen <= set(EventType.values):
        errors.append(FieldError("events", f"Choose from {', '.join(EventType.values)}."))
    if len(description) > 200:
        errors.append(FieldError("description", "must have at most 200 characters"))
    if errors:
        raise InvalidInput("The endpoint was not saved.", fields=errors)
    return {
        "url": url,
        "events": [name for name in EventType.values if name in chosen],
        "description": description,
    }
