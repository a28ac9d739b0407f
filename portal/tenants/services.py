"""Writes of tenants, users and API tokens; and the checks of a user's role that every service begins with.

Members are in ``members.py``, invitations in ``invitations.py``; ``exports.py`` and ``deletion.py`` say what they do.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Iterable, MutableMapping
from datetime import datetime, timedelta
from typing import Any

from allauth.account.models import EmailAddress
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from portal.audit.services import record_change
from portal.errors import Conflict, FieldError, InvalidInput, NotAllowed
from portal.tenants.models import ApiToken, Membership, Role, Scope, Tenant
from portal.tenants.scopes import NEEDED_ROLE, covered_scopes
from portal.tenants.selectors import (
    SESSION_KEY,
    get_api_token,
    get_membership,
    has_second_factor,
    list_memberships_of_user,
)

TOKEN_PREFIX = "mrl_"
LAST_USED_RESOLUTION = timedelta(minutes=1)


@transaction.atomic
def create_tenant(*, name: str, slug: str, weight: float = 1.0) -> Tenant:
    tenant = Tenant(name=name, slug=slug, weight=weight)
    tenant.full_clean()
    tenant.save()
    record_change(tenant=tenant, user=None, action="tenant.created", target=tenant, after={"name": name, "slug": slug})
    return tenant


def create_user(*, username: str, email: str, password: str) -> User:
    """A person who can sign in; a member of nothing yet."""
    return get_user_model().objects.create_user(username=username, email=email, password=password)


@transaction.atomic
def record_email_address(*, user: User) -> None:
    """Tell allauth of the address the operator gave an account; from it a person changes to another one."""
    known = EmailAddress.objects.filter(user_id=user.pk)
    if not user.email or known.filter(email__iexact=user.email).exists():
        return
    known.filter(primary=True).update(primary=False)
    taken = EmailAddress.objects.filter(email__iexact=user.email, verified=True).exists()
    EmailAddress.objects.create(user_id=user.pk, email=user.email, primary=True, verified=not taken)


@transaction.atomic
def add_member(*, tenant: Tenant, user: User, role: str = Role.DEVELOPER) -> Membership:
    """The operator makes ``user`` a member, or changes the role of one; owners invite (``invitations.py``)."""
    before = Membership.objects.filter(tenant=tenant, user_id=user.pk).values_list("role", flat=True).first()
    membership, _ = Membership.objects.update_or_create(tenant=tenant, user_id=user.pk, defaults={"role": role})
    if before != role:
        record_change(
            tenant=tenant,
            user=None,
            action="member.added" if before is None else "member.changed",
            target=membership,
            label=user.get_username(),
            before={} if before is None else {"role": before},
            after={"role": role},
        )
    return membership


# --- who may ---------------------------------------------------------------------------------------------------------


def require_member(*, tenant: Tenant, user: User) -> Membership:
    """The user's membership; raises Http404 for strangers."""
    membership = get_membership(tenant, user)
    if membership is None:
        raise Http404("No such tenant.")
    return membership


def require_writer(*, tenant: Tenant, user: User) -> Membership:
    """The user's membership; raises NotAllowed for viewers, Http404 for strangers, Conflict before a deletion."""
    membership = require_member(tenant=tenant, user=user)
    if not membership.can_write:
        raise NotAllowed(
            "Your role in this tenant is viewer, which can look but not change anything.",
            hint="Ask an owner of the tenant to make you a developer.",
        )
    if tenant.delete_at is not None:
        raise Conflict(
            f"{tenant.name} is to be deleted on {tenant.delete_at:%d %b %Y}; nothing can be added or changed in it.",
            hint="An owner can undo the deletion on the tenant's settings page.",
        )
    return membership


def require_owner(*, tenant: Tenant, user: User) -> Membership:
    """The user's membership; raises NotAllowed for developers and viewers and Http404 for strangers."""
    membership = require_member(tenant=tenant, user=user)
    if not membership.can_manage:
        raise NotAllowed(
            f"Your role in this tenant is {membership.get_role_display().lower()}; only its owners can do this.",
            hint="Ask an owner of the tenant.",
        )
    return membership


# --- the tenant ------------------------------------------------------------------------------------------------------


def switch_tenant(*, user: User, session: MutableMapping[str, Any], tenant_id: uuid.UUID) -> Tenant:
    """Make another of the user's tenants the session's current one; raises Http404 where it is not theirs.

    The next session begins with it too.
    """
    membership = list_memberships_of_user(user).filter(tenant_id=tenant_id).first()
    if membership is None:
        raise Http404("No such tenant.")
    session[SESSION_KEY] = str(membership.tenant_id)
    Membership.objects.filter(pk=membership.pk).update(chosen_at=timezone.now())
    return membership.tenant


@transaction.atomic
def change_tenant(*, tenant: Tenant, user: User, name: str | None = None, require_mfa: bool | None = None) -> Tenant:
    """Rename the tenant, or ask its members for two-factor sign-in. Raises InvalidInput, NotAllowed, Http404."""
    require_owner(tenant=tenant, user=user)
    tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
    before = {"name": tenant.name, "require_mfa": tenant.require_mfa}
    if name is not None:
        tenant.name = name.strip()
        if not 1 <= len(tenant.name) <= 200:
            raise InvalidInput(
                "The tenant was not changed.", fields=[FieldError("name", "Give it a name of at most 200 characters.")]
            )
    if require_mfa is not None:
        if require_mfa and not tenant.require_mfa and not has_second_factor(user):
            message = "Set up two-factor sign-in for yourself first, or you would lock yourself out."
            raise InvalidInput("The tenant was not changed.", fields=[FieldError("require_mfa", message)])
        tenant.require_mfa = require_mfa
    after = {"name": tenant.name, "require_mfa": tenant.require_mfa}
    if after != before:
        tenant.save(update_fields=["name", "require_mfa"])
        record_change(tenant=tenant, user=user, action="tenant.changed", target=tenant, before=before, after=after)
    return tenant


# --- API tokens ------------------------------------------------------------------------------------------------------


def create_api_token(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    scopes: Iterable[str] = (Scope.READ,),
    expires_at: datetime | None = None,
    made_with: ApiToken | None = None,
) -> tuple[ApiToken, str]:
    """Return the token and its secret, which can never be shown again.

    ``made_with`` is the token that asks for another, which may do no more than itself. Raises InvalidInput,
    NotAllowed where the user's role is too low for a scope, Http404.
    """
    chosen = [scope.value for scope in Scope if scope in set(scopes)]
    errors = []
    if not 1 <= len(name.strip()) <= 100:
        errors.append(FieldError("name", "Give the token a name of at most 100 characters."))
    if not chosen or set(scopes) - set(Scope.values):
        errors.append(FieldError("scopes", f"Choose from {', '.join(Scope.values)}."))
    if expires_at is not None and expires_at <= timezone.now():
        errors.append(FieldError("expires_at", "The expiry lies in the past."))
    if made_with is not None and set(chosen) - covered_scopes(made_with.scopes):
        errors.append(FieldError("scopes", "A token cannot make one that may do more than itself."))
    if errors:
        raise InvalidInput("The token was not created.", fields=errors)
    _require_roles(tenant=tenant, user=user, scopes=chosen)
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        token = ApiToken.objects.create(
            tenant=tenant,
            user_id=user.pk,
            name=name.strip(),
            prefix=secret[:10],
            hash=hashlib.sha256(secret.encode()).hexdigest(),
            scopes=chosen,
            expires_at=expires_at,
        )
        after = {"prefix": token.prefix, "scopes": chosen, "expires_at": expires_at}
        record_change(tenant=tenant, user=user, action="api_token.created", target=token, label=token.name, after=after)
    return token, secret


def _require_roles(*, tenant: Tenant, user: User, scopes: Iterable[str]) -> None:
    needed = {NEEDED_ROLE[Scope(scope)] for scope in scopes}
    if Role.OWNER in needed:
        require_owner(tenant=tenant, user=user)
    elif Role.DEVELOPER in needed:
        require_writer(tenant=tenant, user=user)
    else:
        require_member(tenant=tenant, user=user)


@transaction.atomic
def revoke_api_token(*, tenant: Tenant, user: User, token_id: uuid.UUID) -> None:
    token = get_api_token(tenant, user, token_id)
    token.revoked_at = timezone.now()
    token.save(update_fields=["revoked_at"])
    record_change(
        tenant=tenant,
        user=user,
        action="api_token.revoked",
        target=token,
        label=token.name,
        before={"prefix": token.prefix},
    )


def record_token_use(*, token: ApiToken) -> None:
    """Remember when a token was last used, to the minute (a write for every request would be waste)."""
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > LAST_USED_RESOLUTION:
        with transaction.atomic():
            ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
