"""Rate limits per API token, for reading and for writing requests apart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from redis.exceptions import RedisError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from portal.tenants.models import ApiToken

if TYPE_CHECKING:  # rest_framework.views imports this module
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)


class TokenThrottle(SimpleRateThrottle):
    """Counts the requests of one kind of one token."""

    reads: bool
    kind: str
    """As the error message names it."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        try:
            return super().allow_request(request, view)
        except RedisError as error:  # reading a job takes no broker, so its loss is no reason to refuse
            logger.warning("Requests are not counted, because Redis cannot be reached: %s", error)
            return True

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        if (request.method in SAFE_METHODS) != self.reads:
            return None
        return f"throttle.{self.scope}.{request.auth.pk}"


class ReadThrottle(TokenThrottle):
    scope = "read"
    kind = "reading"
    reads = True


class WriteThrottle(TokenThrottle):
    scope = "write"
    kind = "writing"
    reads = False


class TenantThrottle(SimpleRateThrottle):
    """Counts all requests of a tenant, whatever the token, against its own limit; none where it has no limit."""

    scope = "tenant"
    rate = "1/min"  # the number is the tenant's
    who, kind = "All API tokens of a tenant together", "reading and writing"

    def allow_request(self, request: Request, view: APIView) -> bool:
        token = cast(ApiToken, request.auth)
        limit = getattr(getattr(token.tenant, "quotas", None), "max_api_requests_per_minute", None)
        if limit is None:
            return True
        self.num_requests, self.rate = limit, f"{limit}/min"
        try:
            allowed = bool(super().allow_request(request, view))
        except RedisError as error:
            logger.warning("Requests are not counted, because Redis cannot be reached: %s", error)
            return True
        if not allowed:
            request.refused_by = self  # type: ignore[attr-defined]
        return allowed

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return f"throttle.tenant.{cast(ApiToken, request.auth).tenant_id}"
