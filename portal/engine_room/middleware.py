"""Times every request, and writes one log line of it where logs are structured."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse

from portal.engine_room.metrics import REQUEST_SECONDS, REQUESTS, WEBSOCKETS

logger = logging.getLogger("portal.requests")

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
SECRETS = {"token", "secret"}
"""Arguments of routes that are themselves the permission."""
UNWATCHED = {"healthz", "readyz", "metrics"}
"""Routes of machines that ask all the time: measured, not logged."""


class RequestMetricsMiddleware:
    """Right after the request's id is known. A route is its pattern, so no address of a tenant's object is a label."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        start = time.perf_counter()
        response = self.get_response(request)
        seconds = time.perf_counter() - start
        match = request.resolver_match
        route = f"/{match.route}" if match else "unknown"
        method = request.method if request.method in METHODS else "other"
        REQUEST_SECONDS.labels(method, route).observe(seconds)
        REQUESTS.labels(method, route, str(response.status_code)).inc()
        if match is None or match.url_name not in UNWATCHED:
            secret = match is not None and SECRETS & match.kwargs.keys()
            logger.info(
                "%s %s %s",
                method,
                route if secret else request.path,
                response.status_code,
                extra={"method": method, "route": route, "status": response.status_code, "seconds": round(seconds, 4)},
            )
        return response

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Have the lines logged from here on name the job the address names."""
        if "job_id" in kwargs:
            request.origin.job_id = str(kwargs["job_id"])  # type: ignore[attr-defined]


class CountedSockets:
    """ASGI: counts the WebSockets that are open."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with WEBSOCKETS.track_inprogress():
            await self.application(scope, receive, send)
