"""The settings page of a tenant: name, two-factor sign-in, export and deletion."""

from __future__ import annotations

import uuid
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from portal.errors import ServiceError
from portal.pages.http import TenantRequest, add_service_errors, in_words, tenant_page
from portal.tenants.deletion import GRACE, request_deletion, undo_deletion
from portal.tenants.exports import create_export, create_export_link
from portal.tenants.forms import DeletionForm, TenantForm
from portal.tenants.selectors import get_export, list_exports
from portal.tenants.services import change_tenant, require_owner


def owner_page(view: Any) -> Any:
    """``tenant_page`` for what only owners may see."""

    @wraps(view)
    def checked(request: TenantRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        require_owner(tenant=request.tenant, user=request.user)
        return view(request, *args, **kwargs)

    return tenant_page(checked)


@owner_page
def tenant_settings(request: TenantRequest) -> HttpResponse:
    if request.method != "POST":
        return _show(request)
    form = TenantForm(request.POST)
    if not form.is_valid():
        return _show(request, form=form)
    try:
        change_tenant(tenant=request.tenant, user=request.user, **form.cleaned_data)
    except ServiceError as error:
        add_service_errors(form, error)
        return _show(request, form=form)
    messages.success(request, "The settings are saved.")
    return redirect("tenants:settings")


def _show(request: TenantRequest, **forms: Any) -> HttpResponse:
    tenant = request.tenant
    context = {
        "form": TenantForm(initial={"name": tenant.name, "require_mfa": tenant.require_mfa}),
        "deletion_form": DeletionForm(),
        "exports": list_exports(tenant)[:5],
        "grace_days": GRACE.days,
        **forms,
    }
    return render(request, "tenants/settings.html", context, status=400 if forms else 200)


@owner_page
@require_POST
def export_create(request: TenantRequest) -> HttpResponse:
    try:
        create_export(tenant=request.tenant, user=request.user)
        messages.info(request, "The export has begun. You can leave this page.")
    except ServiceError as error:
        messages.error(request, in_words(error))
    return redirect("tenants:settings")


@owner_page
def export_row(request: TenantRequest, export_id: uuid.UUID) -> HttpResponse:
    """The part of the page that changes while an export is made."""
    return render(request, "tenants/_export.html", {"export": get_export(request.tenant, export_id)})


@owner_page
def export_download(request: TenantRequest, export_id: uuid.UUID) -> HttpResponse:
    """A fresh signed link, followed at once."""
    export = get_export(request.tenant, export_id)
    return redirect(create_export_link(tenant=request.tenant, user=request.user, export=export))


@owner_page
@require_POST
def deletion_request(request: TenantRequest) -> HttpResponse:
    form = DeletionForm(request.POST)
    if not form.is_valid():
        return _show(request, deletion_form=form)
    try:
        request_deletion(tenant=request.tenant, user=request.user, **form.cleaned_data)
    except ServiceError as error:
        add_service_errors(form, error)
        return _show(request, deletion_form=form)
    messages.warning(
        request, f"{request.tenant.name} will be deleted in {GRACE.days} days. You can undo it until then."
    )
    return redirect("tenants:settings")


@owner_page
@require_POST
def deletion_undo(request: TenantRequest) -> HttpResponse:
    try:
        undo_deletion(tenant=request.tenant, user=request.user)
        messages.success(request, f"{request.tenant.name} stays.")
    except ServiceError as error:
        messages.error(request, in_words(error))
    return redirect("tenants:settings")
