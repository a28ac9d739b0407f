"""Rate limits per API token, for reading and for writing requests apart."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

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
