"""Writes of tenants, memberships and tokens."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Iterable, MutableMapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from portal.errors import FieldError, InvalidInput, NotAllowed
from portal.tenants.models import ApiToken, Membership, Role, Scope, Tenant
from portal.tenants.selectors import SESSION_KEY, get_api_token, get_membership, list_memberships_of_user

TOKEN_PREFIX = "mrl_"
LAST_USED_RESOLUTION = timedelta(minutes=1)


def create_tenant(*, name: str, slug: str, weight: float = 1.0) -> Tenant:
    tenant = Tenant(name=name, slug=slug, weight=weight)
    tenant.full_clean()
    tenant.save()
    return tenant


def create_user(*, username: str, email: str, password: str) -> User:
    """A person who can sign in; a member of nothing yet."""
    return get_user_model().objects.create_user(username=username, email=email, password=password)


def add_member(*, tenant: Tenant, user: User, role: str = Role.DEVELOPER) -> Membership:
    """Make ``user`` a member, or change the role of one."""
    membership, _ = Membership.objects.update_or_create(tenant=tenant, user_id=user.pk, defaults={"role": role})
    return membership


def require_writer(*, tenant: Tenant, user: User) -> Membership:
    """The user's membership; raises NotAllowed for viewers and Http404 for strangers."""
    membership = get_membership(tenant, user)
    if membership is None:
        raise Http404("No such tenant.")
    if not membership.can_write:
        raise NotAllowed(
            "Your role in this tenant is viewer, which can look but not change anything.",
            hint="Ask an owner of the tenant to make you a developer.",
        )
    return membership


def switch_tenant(*, user: User, session: MutableMapping[str, Any], tenant_id: uuid.UUID) -> Tenant:
    """Make another of the user's tenants the session's current one; raises Http404 where it is not theirs."""
    membership = list_memberships_of_user(user).filter(tenant_id=tenant_id).first()
    if membership is None:
        raise Http404("No such tenant.")
    session[SESSION_KEY] = str(membership.tenant_id)
    return membership.tenant


def create_api_token(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    scopes: Iterable[str] = (Scope.READ,),
    expires_at: datetime | None = None,
) -> tuple[ApiToken, str]:
    """Return the token and its secret, which can never be shown again."""
    chosen = sorted(set(scopes))
    errors = []
    if not name.strip():
        errors.append(FieldError("name", "Give the token a name."))
    if not chosen or not set(chosen) <= set(Scope.values):
        errors.append(FieldError("scopes", f"Choose from {', '.join(Scope.values)}."))
    if expires_at is not None and expires_at <= timezone.now():
        errors.append(FieldError("expires_at", "The expiry lies in the past."))
    if errors:
        raise InvalidInput("The token was not created.", fields=errors)
    if Scope.WRITE in chosen:
        require_writer(tenant=tenant, user=user)
    elif get_membership(tenant, user) is None:
        raise Http404("No such tenant.")
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        tenant=tenant,
        user_id=user.pk,
        name=name.strip(),
        prefix=secret[:10],
        hash=hashlib.sha256(secret.encode()).hexdigest(),
        scopes=chosen,
        expires_at=expires_at,
    )
    return token, secret


def revoke_api_token(*, tenant: Tenant, user: User, token_id: uuid.UUID) -> None:
    token = get_api_token(tenant, user, token_id)
    token.revoked_at = timezone.now()
    token.save(update_fields=["revoked_at"])


def record_token_use(*, token: ApiToken) -> None:
    """Remember when a token was last used, to the minute (a write for every request would be waste)."""
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > LAST_USED_RESOLUTION:
        with transaction.atomic():
            ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
