"""``Authorization: Bearer mrl_...``: ``request.user`` is the token's user, ``request.auth`` the token."""

from __future__ import annotations

from django.contrib.auth.models import User
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from portal.audit.context import current_origin
from portal.tenants.models import ApiToken
from portal.tenants.selectors import find_api_token
from portal.tenants.services import record_token_use


class TokenAuthentication(BaseAuthentication):
    """Unknown, expired, revoked and orphaned tokens are told apart by nobody: each answers the same 401."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        parts = get_authorization_header(request).split()
        if not parts or parts[0].lower() != b"bearer":
            return None
        found = find_api_token(parts[1].decode("latin-1")) if len(parts) == 2 else None
        if found is None:
            raise AuthenticationFailed("This API token is wrong, expired or revoked.")
        token, _ = found
        record_token_use(token=token)
        origin = current_origin()
        origin.token_label, origin.tenant_id = f"{token.name}, {token.prefix}…", str(token.tenant_id)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="MARLaaS"'


class TokenScheme(OpenApiAuthenticationExtension):
    """How the OpenAPI schema describes it."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "mrl_..."}
