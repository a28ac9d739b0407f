"""Reads of tenants, memberships and tokens. Those by user come before a tenant is known; the rest take one first."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import MutableMapping
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Q, QuerySet
from django.http import Http404
from django.utils import timezone

from portal.tenants.models import ApiToken, Membership, Tenant

SESSION_KEY = "tenant_id"

AnyUser = User | AnonymousUser


def list_memberships_of_user(user: AnyUser) -> QuerySet[Membership]:
    """The tenants a user may choose from, first joined first."""
    if not user.is_authenticated:
        return Membership.objects.none()
    return Membership.objects.filter(user_id=user.pk).select_related("tenant")


def get_current_membership(*, user: AnyUser, session: MutableMapping[str, Any]) -> Membership | None:
    """The membership the session has chosen, else the user's first, else None."""
    memberships = list(list_memberships_of_user(user))
    chosen = session.get(SESSION_KEY) if memberships else None
    return next((m for m in memberships if str(m.tenant_id) == chosen), memberships[0] if memberships else None)


def list_members(tenant: Tenant) -> QuerySet[Membership]:
    return Membership.objects.filter(tenant=tenant).select_related("user")


def get_membership(tenant: Tenant, user: AnyUser) -> Membership | None:
    return Membership.objects.filter(tenant=tenant, user_id=user.pk).first() if user.pk else None


def list_api_tokens(tenant: Tenant, user: User) -> QuerySet[ApiToken]:
    """A user's own tokens in the tenant, revoked ones left out."""
    return ApiToken.objects.filter(tenant=tenant, user_id=user.pk, revoked_at=None)


def get_api_token(tenant: Tenant, user: User, token_id: uuid.UUID) -> ApiToken:
    """Raises Http404 where it is not the user's own in this tenant."""
    token = list_api_tokens(tenant, user).filter(pk=token_id).first()
    if token is None:
        raise Http404("No such API token.")
    return token


def find_api_token(secret: str) -> tuple[ApiToken, Membership] | None:
    """The live token with this secret and its user's membership, or None where either is gone."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    token = (
        ApiToken.objects.filter(hash=digest, revoked_at=None, user__is_active=True)
        .filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
        .select_related("tenant__quotas", "user")
        .first()
    )
    membership = get_membership(token.tenant, token.user) if token else None
    return (token, membership) if token and membership else None
