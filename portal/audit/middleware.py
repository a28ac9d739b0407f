"""An id for every request: the sender's ``X-Request-ID`` where it is sane, else a new one; returned and logged."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from portal.audit.context import Origin, origin_of_request

SANE = re.compile(r"[A-Za-z0-9._-]{8,64}")


class RequestIdMiddleware:
    """First of all middleware, so that whatever is logged or audited later carries the id."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        sent = request.headers.get("X-Request-ID", "")
        request_id = sent if SANE.fullmatch(sent) else uuid.uuid4().hex
        origin = Origin(request_id=request_id, address=_address(request))
        request.origin = origin  # type: ignore[attr-defined]
        with origin_of_request(origin):
            response = self.get_response(request)
        response["X-Request-ID"] = request_id
        return response


def _address(request: HttpRequest) -> str | None:
    """The peer as the web server saw it; uvicorn puts the client there where a trusted proxy names it."""
    try:
        return str(ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")))
    except ValueError:
        return None
