"""Scopes of API tokens, enforced for each method of each view (and told in the schema: ``schema.py``).

Invariant: a view that does not say what a writing method needs asks for ``admin``: forgetting closes, never opens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rest_framework.exceptions import NotAuthenticated, PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from portal.tenants.models import ApiToken, Scope
from portal.tenants.scopes import covered_scopes

if TYPE_CHECKING:  # rest_framework.views imports this module
    from rest_framework.views import APIView


def needed_scopes(view: Any, method: str | None) -> tuple[Scope, ...]:
    """``read_scope`` of the view for GET, HEAD and OPTIONS (default ``read``), ``write_scope`` for the rest.

    A view that does several things at once names a tuple; a token then needs every one of them.
    """
    if method in SAFE_METHODS:
        needed = getattr(view, "read_scope", Scope.READ)
    else:
        needed = getattr(view, "write_scope", Scope.ADMIN)
    return needed if isinstance(needed, tuple) else (needed,)


def name_scopes(scopes: Iterable[Scope]) -> str:
    """``'jobs:write' and 'datasets:write'``"""
    return " and ".join(f"'{scope.value}'" for scope in scopes)


class HasScope(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        if not isinstance(request.auth, ApiToken):
            raise NotAuthenticated("Send an API token: 'Authorization: Bearer mrl_...'.")
        needed = needed_scopes(view, request.method)
        if not covered_scopes(request.auth.scopes).issuperset(needed):
            held = ", ".join(request.auth.scopes)
            noun = "scope" if len(needed) == 1 else "scopes"
            raise PermissionDenied(f"This needs the {noun} {name_scopes(needed)}; this API token has: {held}.")
        return True
