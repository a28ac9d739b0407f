"""Writing the audit log: one helper that every service calls in the transaction of its change."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db import connection, models

from portal.audit.context import current_origin
from portal.audit.models import ActorKind, AuditEntry
from portal.tenants.models import Tenant

MASK = "••••••"
SECRET_WORDS = ("secret", "password", "token", "hash", "authorization", "credential", "private")
MAX_TEXT = 500
"""Characters kept of one value: the log says what changed, it is no store of contents."""


def record_change(
    *,
    tenant: Tenant | None,
    user: User | AnonymousUser | None,
    action: str,
    target: models.Model,
    label: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
) -> AuditEntry:
    """Write down a change of ``target`` in the transaction that makes it.

    ``action`` is ``noun.verb``, e.g. ``job.cancelled``. ``user`` is whose rights were used, None for the system; that a
    token or an admin was behind it is known from the request. ``before`` and ``after`` hold what changed; what does
    not differ between them is left out, values under names of secrets are masked.

    Raises RuntimeError outside a transaction.
    """
    if not connection.in_atomic_block:
        raise RuntimeError(f"{action} must be recorded in the transaction of the change.")
    old, new = _differences(dict(before or {}), dict(after or {}))
    origin = current_origin()
    return AuditEntry.objects.create(
        tenant_id=tenant.pk if tenant else None,
        tenant_name=tenant.name if tenant else "",
        **_actor(user),
        action=action,
        object_type=target._meta.model_name or "",
        object_id=str(target.pk or ""),
        object_label=(label or str(target))[:300],
        before=mask_secrets(old),
        after=mask_secrets(new),
        reason=reason,
        request_id=origin.request_id,
        address=origin.address,
    )


def accountable_user_id(user: User | None) -> int | None:
    """Whom a link made now is to be charged to when it is used later: the admin, where one acts as ``user``."""
    origin = current_origin()
    if origin.impersonating:
        return int(origin.admin_id)
    return user.pk if user else None


def _actor(user: User | AnonymousUser | None) -> dict[str, str]:
    origin = current_origin()
    name = user.get_username() if user is not None and user.is_authenticated else ""
    if origin.admin_id:
        behalf = name if origin.impersonating else ""
        return _named(ActorKind.ADMIN, origin.admin_id, origin.admin_label, on_behalf_of=behalf)
    if user is None or not name:
        return _named(ActorKind.SYSTEM, "", "system")
    if origin.token_label:
        return _named(ActorKind.TOKEN, str(user.pk), f"{name} ({origin.token_label})")
    return _named(ActorKind.USER, str(user.pk), name)


def _named(kind: str, actor_id: str, label: str, on_behalf_of: str = "") -> dict[str, str]:
    return {"actor_kind": kind, "actor_id": actor_id, "actor_label": label[:300], "on_behalf_of": on_behalf_of[:300]}


def _differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    same = {name for name in before.keys() & after.keys() if before[name] == after[name]}
    return (
        {name: value for name, value in before.items() if name not in same},
        {name: value for name, value in after.items() if name not in same},
    )


def mask_secrets(value: Any, name: str = "") -> Any:
    """JSON of ``value``: what stands under the name of a secret masked, long texts cut."""
    if name and any(word in name.lower() for word in SECRET_WORDS) and value not in (None, "", [], {}):
        return MASK
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {str(key): mask_secrets(item, str(key)) for key, item in value.items()}
        case list() | tuple() | set():
            return [mask_secrets(item) for item in value]
        case datetime.datetime():
            return value.isoformat()
        case models.Model():
            return str(value)
        case uuid.UUID():
            return str(value)
    text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
