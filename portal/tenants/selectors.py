"""Reads of tenants, memberships and tokens. Those by user come before a tenant is known; the rest take one first."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import MutableMapping
from typing import Any

from allauth.mfa.models import Authenticator
from allauth.mfa.utils import is_mfa_enabled
from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import Http404
from django.utils import timezone

from portal.tenants.models import ApiToken, Invitation, Membership, Tenant, TenantExport

SESSION_KEY = "tenant_id"

AnyUser = User | AnonymousUser


def list_memberships_of_user(user: AnyUser) -> QuerySet[Membership]:
    """The tenants a user may choose from, first joined first."""
    if not user.is_authenticated:
        return Membership.objects.none()
    return Membership.objects.filter(user_id=user.pk).select_related("tenant", "user")


def get_current_membership(*, user: AnyUser, session: MutableMapping[str, Any]) -> Membership | None:
    """The membership the session has chosen, else the one the user chose last, else the first, else None."""
    memberships = list(list_memberships_of_user(user))
    if not memberships:
        return None
    chosen = session.get(SESSION_KEY)
    latest = max(memberships, key=lambda each: each.chosen_at.timestamp() if each.chosen_at else 0.0)
    return next((each for each in memberships if str(each.tenant_id) == chosen), latest)


def lacks_required_mfa(membership: Membership) -> bool:
    """The tenant asks its members for two-factor sign-in, and this one has not set it up."""
    return membership.tenant.require_mfa and not has_second_factor(membership.user)


def has_second_factor(user: User) -> bool:
    """An authenticator app or a security key; recovery codes only stand in for one."""
    return is_mfa_enabled(user, types=[Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN])


def find_tenant(text: str) -> Tenant | None:
    """For operators: the tenant with this id."""
    try:
        return Tenant.objects.filter(pk=uuid.UUID(text)).first()
    except ValueError:
        return None


def list_members(tenant: Tenant) -> QuerySet[Membership]:
    """With ``has_mfa``."""
    factors = Authenticator.objects.filter(user_id=OuterRef("user_id")).exclude(type=Authenticator.Type.RECOVERY_CODES)
    return Membership.objects.filter(tenant=tenant).select_related("user").annotate(has_mfa=Exists(factors))


def get_member(tenant: Tenant, membership_id: int) -> Membership:
    """Raises Http404 where the tenant has no such member."""
    membership = list_members(tenant).filter(pk=membership_id).first()
    if membership is None:
        raise Http404("No such member.")
    return membership


def list_open_invitations(tenant: Tenant) -> QuerySet[Invitation]:
    """Neither accepted nor revoked, newest first; expired ones can be sent again."""
    return Invitation.objects.filter(tenant=tenant, accepted_at=None, revoked_at=None).select_related("created_by")


def get_open_invitation(tenant: Tenant, invitation_id: uuid.UUID) -> Invitation:
    """Raises Http404 where the tenant has no such open invitation."""
    invitation = list_open_invitations(tenant).filter(pk=invitation_id).first()
    if invitation is None:
        raise Http404("No such invitation.")
    return invitation


def find_invitation(secret: str) -> Invitation | None:
    """The invitation this link may still accept, or None."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    live = Invitation.objects.filter(hash=digest, accepted_at=None, revoked_at=None, expires_at__gt=timezone.now())
    return live.filter(tenant__delete_at=None).select_related("tenant", "created_by").first()


def list_exports(tenant: Tenant) -> QuerySet[TenantExport]:
    """Without their plans, which name every job."""
    return TenantExport.objects.filter(tenant=tenant).defer("plan")


def get_export(tenant: Tenant, export_id: uuid.UUID) -> TenantExport:
    """Raises Http404 where the tenant has no such export."""
    export = list_exports(tenant).filter(pk=export_id).first()
    if export is None:
        raise Http404("No such export.")
    return export


def get_membership(tenant: Tenant, user: AnyUser) -> Membership | None:
    if not user.pk:
        return None
    return Membership.objects.filter(tenant=tenant, user_id=user.pk).select_related("tenant", "user").first()


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
    token = _live_api_tokens().filter(hash=digest).select_related("tenant__quotas", "user").first()
    membership = get_membership(token.tenant, token.user) if token else None
    return (token, membership) if token and membership else None


def is_api_token_live(token_id: uuid.UUID) -> bool:
    """For what goes on after a request was let in: the token still is valid, and its user a member."""
    token = _live_api_tokens().filter(pk=token_id).select_related("tenant", "user").first()
    return token is not None and get_membership(token.tenant, token.user) is not None


def _live_api_tokens() -> QuerySet[ApiToken]:
    not_expired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return ApiToken.objects.filter(not_expired, revoked_at=None, user__is_active=True)
