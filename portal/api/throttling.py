"""Rate limits per API token, for reading and for writing requests apart.

Every answer says how it stands: ``X-RateLimit-Limit``, ``X-RateLimit-Remaining`` and ``X-RateLimit-Reset`` (seconds
until the oldest request counted is forgotten). The window slides.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, cast

from redis.exceptions import RedisError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from portal.tenants.models import ApiToken

if TYPE_CHECKING:  # rest_framework.views imports this module
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)

PERIODS = {"s": "second", "m": "minute", "h": "hour", "d": "day"}


class TokenThrottle(SimpleRateThrottle):
    """Counts the requests of one kind of one token."""

    reads: bool
    kind: str
    """As the error message names it."""

    @property
    def limit_kind(self) -> str:
        """As the error names it for programs."""
        return f"api_{self.scope}_requests"

    num_requests: int | None
    duration: int | None
    """Seconds. Both are parsed from the rate."""
    history: list[float]
    """When the requests that count were made, newest first; missing where nothing was counted."""

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

    @property
    def in_words(self) -> str:
        """The limit for people."""
        count, _, period = self.get_rate_in_words().partition(" ")
        return f"An API token may make {count} {self.kind} requests {period}."

    def get_rate_in_words(self) -> str:
        """``120 per minute``"""
        count, _, period = (self.get_rate() or "").partition("/")
        return f"{count} per {PERIODS.get(period[:1], period)}"


def rate_headers(throttle: Any) -> dict[str, str]:
    """How a limit stands after this request; empty where the request was of another kind or not counted."""
    history: Any = getattr(throttle, "history", None)
    if history is None or throttle.num_requests is None or throttle.duration is None:
        return {}
    oldest = history[-1] if history else throttle.now
    return {
        "X-RateLimit-Limit": str(throttle.num_requests),
        "X-RateLimit-Remaining": str(max(0, throttle.num_requests - len(history))),
        "X-RateLimit-Reset": str(max(1, math.ceil(oldest + throttle.duration - throttle.now))),
    }


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
    limit_kind = "api_requests"
    rate = "1/min"  # the number is the tenant's

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

    @property
    def in_words(self) -> str:
        """The limit for people."""
        return f"All API tokens of a tenant together may make {self.num_requests} requests per minute."

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return f"throttle.tenant.{cast(ApiToken, request.auth).tenant_id}"
