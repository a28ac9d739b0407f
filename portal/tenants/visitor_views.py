"""Pages of those who are not (yet, or really) members: invited people, admins acting as a member, holders of a link."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.http import content_disposition_header
from django.utils.text import slugify
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.errors import ServiceError
from portal.pages.http import add_service_errors
from portal.tenants.exports import open_export_link
from portal.tenants.forms import ImpersonationForm, NewAccountForm
from portal.tenants.impersonation import end_impersonation, get_target, start_impersonation
from portal.tenants.invitations import GONE, GONE_HINT, accept_as_new_user, accept_as_user, find_account
from portal.tenants.models import Membership
from portal.tenants.selectors import SESSION_KEY, find_invitation
from portal.tenants.sign_in import sign_in_newcomer

CHUNK_BYTES = 1024 * 1024


@never_cache
@login_not_required
def invitation_accept(request: HttpRequest, secret: str) -> HttpResponse:
    """For new people a form, for known ones sign-in, for whoever is signed in a button."""
    invitation = find_invitation(secret)
    if invitation is None:
        return render(request, "tenants/invitation_gone.html", {"words": GONE, "hint": GONE_HINT}, status=404)
    account = find_account(invitation.email)
    form = NewAccountForm(request.POST if request.method == "POST" else None)
    signed_in = request.user.is_authenticated
    context = {
        "invitation": invitation,
        "account": account,
        "form": form,
        "path": request.path,
        "is_theirs": isinstance(request.user, User) and request.user.email.lower() == invitation.email,
    }
    if request.method != "POST" or (account and not signed_in):
        return render(request, "tenants/invitation.html", context)
    try:
        if signed_in:
            return _enter(request, accept_as_user(secret=secret, user=request.user))  # type: ignore[arg-type]
        if form.is_valid():
            membership = accept_as_new_user(secret=secret, **form.cleaned_data)
            sign_in_newcomer(request, membership.user)
            return _enter(request, membership)
    except ServiceError as error:
        add_service_errors(form, error)
    return render(request, "tenants/invitation.html", context, status=400)


def _enter(request: HttpRequest, membership: Membership) -> HttpResponse:
    request.session[SESSION_KEY] = str(membership.tenant_id)
    messages.success(request, f"Welcome to {membership.tenant.name}.")
    return redirect("home")


def impersonation_start(request: HttpRequest, membership_id: int) -> HttpResponse:
    """An admin says why they act as a member."""
    admin = request.user
    membership = get_target(admin=admin, membership_id=membership_id)
    form = ImpersonationForm(request.POST or None)
    if not admin.is_superuser:
        form.fields["allow_changes"].disabled = True
    if request.method == "POST" and form.is_valid():
        try:
            start_impersonation(
                admin=admin,  # type: ignore[arg-type]
                session=request.session,
                membership_id=membership_id,
                reason=form.cleaned_data["reason"],
                read_only=not form.cleaned_data["allow_changes"],
            )
            return redirect("home")
        except ServiceError as error:
            add_service_errors(form, error, {"read_only": "allow_changes"})
    context = {"target": membership, "form": form}
    return render(request, "tenants/impersonate.html", context, status=400 if form.errors else 200)


@require_POST
def impersonation_end(request: HttpRequest) -> HttpResponse:
    impersonation = request.impersonation  # type: ignore[attr-defined]
    if impersonation is not None:
        end_impersonation(admin=impersonation.admin, session=request.session)
        messages.success(request, "You are yourself again.")
        return redirect("admin:tenants_membership_changelist")
    return redirect("home")


@require_safe
@login_not_required
def export_file(request: HttpRequest, token: str) -> HttpResponseBase:
    """The signed download: whoever holds an unexpired link may fetch the export, signed in or not."""
    export = open_export_link(token=token)
    if export is None:
        message = (
            "This download link is wrong or has expired. Get a new one on the tenant's settings page or the API.\n"
        )
        return HttpResponseForbidden(message, content_type="text/plain; charset=utf-8")
    response = StreamingHttpResponse(_stream(export.path), content_type="application/zip")
    response["Content-Length"] = export.size_bytes
    filename = f"{slugify(export.tenant.name) or 'tenant'}-{export.created_at:%Y-%m-%d}.zip"
    response["Content-Disposition"] = content_disposition_header(True, filename) or ""
    response["Cache-Control"] = "private, no-store"
    return response


async def _stream(path: Path) -> AsyncIterator[bytes]:
    """Chunks read in a thread: ASGI would first read all of a synchronous iterator into memory."""
    with await sync_to_async(lambda: path.open("rb"), thread_sensitive=False)() as file:
        while chunk := await sync_to_async(file.read, thread_sensitive=False)(CHUNK_BYTES):
            yield chunk
