"""Who a request of a browser acts as, in which tenant, and what keeps it from acting at all.

``request.tenant`` and ``request.membership`` are both ``None`` where there is none; ``request.impersonation`` says that
``request.user`` is not the one who signed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from portal.errors import NotAllowed
from portal.tenants.impersonation import find_impersonation
from portal.tenants.models import Impersonation
from portal.tenants.selectors import get_current_membership, get_membership, lacks_required_mfa
from portal.tenants.services import TOKEN_PREFIX

SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE"}
OWN_DOORS = (
    "/admin/",
    "/engine/",
    "/metrics",
    "/api/",
    "/static/",
    "/healthz",
    "/readyz",
    "/download/",
    "/invitations/",
)
"""Not pages inside a tenant: they know their user by themselves, or need none."""
ACCOUNT = "/accounts/"
TOKEN = re.compile(re.escape(TOKEN_PREFIX) + r"[A-Za-z0-9_-]{20}")


class TokenInAddressMiddleware:
    """Refuses an API token in an address: it would end up in logs, histories and referrers."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not TOKEN.search(unquote(request.get_full_path())):
            return self.get_response(request)
        body = {
            "code": "token_in_address",
            "message": "The address holds an API token, which belongs into the header 'Authorization: Bearer ...'.",
            "fields": [],
            "hint": "Revoke that token on the portal's API tokens page: addresses end up in logs.",
        }
        return JsonResponse({"error": body}, status=400)


class TenantMiddleware:
    """The tenant chosen in the session, else the one the user chose last; or whom an admin looks through."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.impersonation = None  # type: ignore[attr-defined]
        own_door = request.path.startswith(OWN_DOORS)
        impersonation = None if own_door else find_impersonation(user=request.user, session=request.session)
        if impersonation is not None:
            membership = self._act_as(request, impersonation)
        else:
            membership = get_current_membership(user=request.user, session=request.session)
        request.membership = membership  # type: ignore[attr-defined]
        request.tenant = membership.tenant if membership else None  # type: ignore[attr-defined]
        if membership is not None:
            membership.looks_only = membership.looks_only or membership.tenant.delete_at is not None
            request.origin.tenant_id = str(membership.tenant_id)  # type: ignore[attr-defined]
        if impersonation is not None and (refused := _refusal(request, impersonation)):
            return render(request, "pages/refused.html", {"error": refused}, status=refused.status)
        if membership and not (own_door or impersonation or _leads_to_mfa(request)) and lacks_required_mfa(membership):
            if "HX-Request" in request.headers:
                return HttpResponse("Set up two-factor sign-in first.", status=403, content_type="text/plain")
            return redirect("mfa_index")
        return self.get_response(request)

    def _act_as(self, request: HttpRequest, impersonation: Impersonation):
        origin = request.origin  # type: ignore[attr-defined]
        origin.admin_id, origin.admin_label = str(impersonation.admin_id), impersonation.admin.get_username()
        origin.impersonating = True
        request.impersonation = impersonation  # type: ignore[attr-defined]
        if request.path != reverse("account_logout"):
            request.user = impersonation.user
        membership = get_membership(impersonation.tenant, impersonation.user)
        if membership is not None:
            membership.looks_only = impersonation.read_only
        return membership


def _leads_to_mfa(request: HttpRequest) -> bool:
    """What somebody who has to set up MFA may use: their account, and leaving for another tenant."""
    return request.path.startswith(ACCOUNT) or (request.path.startswith("/tenants/") and request.method == "POST")


def _refusal(request: HttpRequest, impersonation: Impersonation) -> NotAllowed | None:
    """What must not be done as somebody else."""
    if request.path in {reverse("tenants:impersonation-end"), reverse("account_logout")}:
        return None
    who = impersonation.user.get_username()
    if request.path.startswith(ACCOUNT):
        return NotAllowed(f"The account is {who}'s own.", hint="End acting as them to come to yours.")
    if request.method in SAFE_METHODS:
        return None
    if impersonation.read_only:
        return NotAllowed(f"You act as {who} to look, not to change anything.", hint="Ask them to do it themselves.")
    if request.path.startswith((reverse("tenants:tokens"), "/tenants/")):
        return NotAllowed(f"You act as {who} here and for an hour only.", hint="Tokens and other tenants are theirs.")
    return None
