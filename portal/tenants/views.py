"""Pages of a tenant itself: API tokens, members, switching between tenants."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.errors import ServiceError
from portal.pages.http import TenantRequest, add_service_errors, tenant_page
from portal.tenants.forms import TokenForm
from portal.tenants.selectors import list_api_tokens, list_members
from portal.tenants.services import create_api_token, revoke_api_token, switch_tenant


@never_cache
@tenant_page
def token_list(request: TenantRequest) -> HttpResponse:
    """The user's own tokens; a new one's secret is in the answer to the form and nowhere else."""
    form = TokenForm(request.POST or None)
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


@tenant_page
@require_POST
def token_revoke(request: TenantRequest, token_id: uuid.UUID) -> HttpResponse:
    revoke_api_token(tenant=request.tenant, user=request.user, token_id=token_id)
    messages.success(request, "The token is revoked; requests with it are refused from now on.")
    return redirect("tenants:tokens")


@tenant_page
def member_list(request: TenantRequest) -> HttpResponse:
    return render(request, "tenants/members.html", {"members": list_members(request.tenant)})


@tenant_page
@require_POST
def tenant_switch(request: TenantRequest, tenant_id: uuid.UUID) -> HttpResponse:
    tenant = switch_tenant(user=request.user, session=request.session, tenant_id=tenant_id)
    messages.info(request, f"You are now in {tenant.name}.")
    return redirect("home")
