"""Pages of a tenant itself: API tokens, members and invitations, switching between tenants."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.errors import ServiceError
from portal.pages.http import TenantRequest, add_service_errors, in_words, tenant_page
from portal.tenants.forms import InvitationForm, TokenForm
from portal.tenants.invitations import Sent, create_invitation, resend_invitation, revoke_invitation
from portal.tenants.members import change_member_role, leave_tenant, remove_member
from portal.tenants.models import Role, Scope
from portal.tenants.scopes import NEEDED_ROLE
from portal.tenants.selectors import get_member, list_api_tokens, list_members, list_open_invitations
from portal.tenants.services import create_api_token, revoke_api_token, switch_tenant

# --- API tokens ------------------------------------------------------------------------------------------------------


@never_cache
@tenant_page
def token_list(request: TenantRequest) -> HttpResponse:
    """The user's own tokens; a new one's secret is in the answer to the form and nowhere else."""
    form = TokenForm(request.POST or None)
    form.fields["scopes"].choices = _choosable(request)  # type: ignore[attr-defined]
    secret, created = "", None
    if request.method == "POST" and form.is_valid():
        try:
            created, secret = create_api_token(
                tenant=request.tenant,
                user=request.user,
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                expires_at=form.expires_at(),
            )
            form = TokenForm()
            form.fields["scopes"].choices = _choosable(request)  # type: ignore[attr-defined]
        except ServiceError as error:
            add_service_errors(form, error, {"expires_at": "expires_in_days"})
    context = {
        "form": form,
        "tokens": list_api_tokens(request.tenant, request.user),
        "created": created,
        "secret": secret,
        "api_root": request.build_absolute_uri("/api/v1/"),
    }
    return render(request, "tenants/tokens.html", context, status=400 if form.errors else 200)


def _choosable(request: TenantRequest) -> list[tuple[str, str]]:
    """The scopes a token of this member may have."""
    roles = {
        Role.OWNER: {Role.OWNER, Role.DEVELOPER, Role.VIEWER},
        Role.DEVELOPER: {Role.DEVELOPER, Role.VIEWER},
        Role.VIEWER: {Role.VIEWER},
    }[Role(request.membership.role)]
    return [(scope.value, scope.label) for scope in Scope if NEEDED_ROLE[scope] in roles]


@tenant_page
@require_POST
def token_revoke(request: TenantRequest, token_id: uuid.UUID) -> HttpResponse:
    revoke_api_token(tenant=request.tenant, user=request.user, token_id=token_id)
    messages.success(request, "The token is revoked; requests with it are refused from now on.")
    return redirect("tenants:tokens")


# --- members ---------------------------------------------------------------------------------------------------------


@never_cache
@tenant_page
def member_list(request: TenantRequest) -> HttpResponse:
    """Members; for owners the invitations too. The link of a new one is in the answer to the form and nowhere else."""
    if request.method != "POST":
        return _show_members(request, InvitationForm())
    form = InvitationForm(request.POST)
    if not form.is_valid():
        return _show_members(request, form)
    try:
        sent = create_invitation(
            tenant=request.tenant,
            user=request.user,
            email=form.cleaned_data["email"],
            role=form.cleaned_data["role"],
            base_url=request.build_absolute_uri("/"),
        )
    except ServiceError as error:
        add_service_errors(form, error)
        return _show_members(request, form)
    return _show_members(request, InvitationForm(), sent)


def _show_members(request: TenantRequest, form: InvitationForm, sent: Sent | None = None) -> HttpResponse:
    acting = request.impersonation
    context = {
        "members": list_members(request.tenant),
        "manages": request.membership.can_manage and not (acting and acting.read_only),
        "invitations": list_open_invitations(request.tenant) if request.membership.can_manage else [],
        "roles": Role.choices,
        "form": form,
        "sent": sent,
    }
    return render(request, "tenants/members.html", context, status=400 if form.errors else 200)


@tenant_page
@require_POST
def invitation_resend(request: TenantRequest, invitation_id: uuid.UUID) -> HttpResponse:
    base_url = request.build_absolute_uri("/")
    sent = resend_invitation(tenant=request.tenant, user=request.user, invitation_id=invitation_id, base_url=base_url)
    return _show_members(request, InvitationForm(), sent)


@tenant_page
@require_POST
def invitation_revoke(request: TenantRequest, invitation_id: uuid.UUID) -> HttpResponse:
    revoke_invitation(tenant=request.tenant, user=request.user, invitation_id=invitation_id)
    messages.success(request, "The invitation is revoked; its link no longer works.")
    return redirect("tenants:members")


@tenant_page
@require_POST
def member_role(request: TenantRequest, membership_id: int) -> HttpResponse:
    try:
        role = request.POST.get("role", "")
        member = change_member_role(tenant=request.tenant, user=request.user, membership_id=membership_id, role=role)
        messages.success(request, f"{member.user.get_username()} is now {member.get_role_display().lower()}.")
    except ServiceError as error:
        messages.error(request, in_words(error))
    return redirect("tenants:members")


@tenant_page
@require_POST
def member_remove(request: TenantRequest, membership_id: int) -> HttpResponse:
    name = get_member(request.tenant, membership_id).user.get_username()
    try:
        remove_member(tenant=request.tenant, user=request.user, membership_id=membership_id)
        messages.success(request, f"{name} is no longer a member; their API tokens are revoked.")
    except ServiceError as error:
        messages.error(request, in_words(error))
    return redirect("tenants:members")


@tenant_page
@require_POST
def member_leave(request: TenantRequest) -> HttpResponse:
    try:
        leave_tenant(tenant=request.tenant, user=request.user)
    except ServiceError as error:
        messages.error(request, in_words(error))
        return redirect("tenants:members")
    messages.success(request, f"You left {request.tenant.name}.")
    return redirect("home")


@tenant_page
@require_POST
def tenant_switch(request: TenantRequest, tenant_id: uuid.UUID) -> HttpResponse:
    tenant = switch_tenant(user=request.user, session=request.session, tenant_id=tenant_id)
    messages.info(request, f"You are now in {tenant.name}.")
    return redirect("home")
