"""Scopes of API tokens: ``read`` for looking, ``write`` for everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.exceptions import NotAuthenticated
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from portal.tenants.models import ApiToken, Scope

if TYPE_CHECKING:  # rest_framework.views imports this module
    from rest_framework.views import APIView


class HasScope(BasePermission):
    """A view that writes nothing although its method says so names its scope in ``required_scope``."""

    message = "This API token has only the scope 'read'; this needs 'write'."

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not isinstance(request.auth, ApiToken):
            raise NotAuthenticated("Send an API token: 'Authorization: Bearer mrl_...'.")
        default = Scope.READ if request.method in SAFE_METHODS else Scope.WRITE
        needed = getattr(view, "required_scope", default)
        return Scope.WRITE in request.auth.scopes or needed in request.auth.scopes
