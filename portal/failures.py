"""What Django answers where no view could: pages for people, the API's error shape under ``/api/``."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from portal.api.errors import INTERNAL, PREFIX, TRY_LATER, answer_plain


def bad_request(request: HttpRequest, exception: Exception, **kwargs: Any) -> HttpResponse:
    if request.path.startswith(PREFIX):
        return answer_plain(request, 400, "bad_request", "The request cannot be read.")
    return defaults.bad_request(request, exception, **kwargs)


def permission_denied(request: HttpRequest, exception: Exception, **kwargs: Any) -> HttpResponse:
    if request.path.startswith(PREFIX):
        return answer_plain(request, 403, "not_allowed", str(exception) or "Not allowed.")
    return defaults.permission_denied(request, exception, **kwargs)


def not_found(request: HttpRequest, exception: Exception, **kwargs: Any) -> HttpResponse:
    if request.path.startswith(PREFIX):
        hint = "The API's addresses begin with /api/v1/."
        return answer_plain(request, 404, "not_found", f"There is nothing at {request.path}.", hint)
    return defaults.page_not_found(request, exception, **kwargs)


def server_error(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    if request.path.startswith(PREFIX):
        return answer_plain(request, 500, "internal", INTERNAL, TRY_LATER)
    return defaults.server_error(request, **kwargs)
