"""An admin acts as a member, to see what the member sees.

Invariants: only staff, with a reason, for an hour; never as another admin, unless a superuser does; the session stays
the admin's, so nothing of the member's account can be changed and every change is audited as the admin's on behalf of
the member; it only looks unless a superuser chose otherwise.
"""

from __future__ import annotations

import uuid
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from portal.audit.context import current_origin
from portal.audit.services import record_change
from portal.errors import FieldError, InvalidInput, NotAllowed
from portal.tenants.models import Impersonation, Membership

SESSION_KEY = "impersonation"
LASTS = timedelta(hours=1)


def get_target(*, admin: User | AnonymousUser, membership_id: int) -> Membership:
    """The membership an admin may act under; Http404 for whoever is no admin, NotAllowed for admins as targets."""
    if not (admin.is_active and admin.is_staff):
        raise Http404("No such page.")
    membership = Membership.objects.select_related("user", "tenant").filter(pk=membership_id).first()
    if membership is None or membership.user_id == admin.pk:
        raise Http404("No such member.")
    if not membership.user.is_active:
        raise NotAllowed("This account is switched off.", hint="Switch it on first.")
    if membership.user.is_superuser or (membership.user.is_staff and not admin.is_superuser):
        raise NotAllowed("Nobody acts as a superuser, and only superusers act as other admins.")
    return membership


@transaction.atomic
def start_impersonation(
    *, admin: User, session: MutableMapping[str, Any], membership_id: int, reason: str, read_only: bool = True
) -> Impersonation:
    """Let the session act as a member for ``LASTS``. Raises InvalidInput, NotAllowed, Http404."""
    membership = get_target(admin=admin, membership_id=membership_id)
    if len(reason.strip()) < 5:
        message = "Say why: it goes into the tenant's audit log."
        raise InvalidInput("Nothing was started.", fields=[FieldError("reason", message)])
    if not read_only and not admin.is_superuser:
        message = "Only superusers may change things on behalf of a member."
        raise InvalidInput("Nothing was started.", fields=[FieldError("read_only", message)])
    end_impersonation(admin=admin, session=session)
    impersonation = Impersonation.objects.create(
        admin_id=admin.pk,
        user=membership.user,
        tenant=membership.tenant,
        reason=reason.strip(),
        read_only=read_only,
        expires_at=timezone.now() + LASTS,
    )
    session[SESSION_KEY] = impersonation.pk.hex
    _act_as(impersonation)
    record_change(
        tenant=impersonation.tenant,
        user=impersonation.user,
        action="impersonation.started",
        target=impersonation,
        label=impersonation.user.get_username(),
        after={"read_only": read_only, "expires_at": impersonation.expires_at},
        reason=impersonation.reason,
    )
    return impersonation


@transaction.atomic
def end_impersonation(*, admin: User | AnonymousUser, session: MutableMapping[str, Any]) -> None:
    """Harmless where none is under way."""
    impersonation = find_impersonation(user=admin, session=session)
    session.pop(SESSION_KEY, None)
    if impersonation is None:
        return
    impersonation.ended_at = timezone.now()
    impersonation.save(update_fields=["ended_at"])
    _act_as(impersonation)
    record_change(
        tenant=impersonation.tenant,
        user=impersonation.user,
        action="impersonation.ended",
        target=impersonation,
        label=impersonation.user.get_username(),
    )


def find_impersonation(*, user: User | AnonymousUser, session: MutableMapping[str, Any]) -> Impersonation | None:
    """What the session of ``user``, who signed in, acts under now; None where it is over or the user no admin."""
    key = session.get(SESSION_KEY)
    if key is None or not (user.is_authenticated and user.is_staff):
        return None
    live = Impersonation.objects.filter(pk=uuid.UUID(key), admin_id=user.pk, ended_at=None)
    live = live.filter(expires_at__gt=timezone.now(), user__is_active=True)
    return live.select_related("admin", "user", "tenant").first()


def _act_as(impersonation: Impersonation) -> None:
    origin = current_origin()
    origin.admin_id, origin.admin_label = str(impersonation.admin_id), impersonation.admin.get_username()
    origin.impersonating = True
