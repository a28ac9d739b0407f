"""Scopes of API tokens, enforced for each method of each view (and told in the schema: ``schema.py``).

Invariant: a view that does not say what a writing method needs asks for ``admin``: forgetting closes, never opens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rest_framework.exceptions import NotAuthenticated, PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from portal.tenants.models import ApiToken, Scope
from portal.tenants.scopes import covered_scopes

if TYPE_CHECKING:  # rest_framework.views imports this module
    from rest_framework.views import APIView


def needed_scope(view: Any, method: str | None) -> Scope:
    """``read_scope`` of the view for GET, HEAD and OPTIONS (default ``read``), ``write_scope`` for the rest."""
    if method in SAFE_METHODS:
        return getattr(view, "read_scope", Scope.READ)
    return getattr(view, "write_scope", Scope.ADMIN)


class HasScope(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        if not isinstance(request.auth, ApiToken):
            raise NotAuthenticated("Send an API token: 'Authorization: Bearer mrl_...'.")
        needed = needed_scope(view, request.method)
        if needed not in covered_scopes(request.auth.scopes):
            held = ", ".join(request.auth.scopes)
            raise PermissionDenied(f"This needs the scope '{needed.value}'; this API token has: {held}.")
        return True
