"""The API's one error shape: ``{"error": {"code", "message", "fields": [{"field", "message"}], "hint"}}``, with a
``limit`` (kind, used, limit, resets_at, retry_after) where one was reached."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import (
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    TooManyFieldsSent,
    TooManyFilesSent,
)
from django.http import Http404, HttpRequest, JsonResponse, UnreadablePostError
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import set_rollback

from portal.errors import FieldError, Limit, QuotaExceeded, ServiceError

logger = logging.getLogger(__name__)

HINTS = {
    status.HTTP_401_UNAUTHORIZED: "Make a token on the portal's API tokens page.",
    status.HTTP_403_FORBIDDEN: "Use a token with the scope this needs.",
    status.HTTP_404_NOT_FOUND: "Check the id and that the token belongs to the right tenant.",
    status.HTTP_405_METHOD_NOT_ALLOWED: "The Allow header and the API reference name the methods.",
    status.HTTP_413_REQUEST_ENTITY_TOO_LARGE: "Send less at once; rows and documents are uploaded as files.",
    status.HTTP_415_UNSUPPORTED_MEDIA_TYPE: "Set Content-Type; the API reference says to what.",
}


class RateLimited(exceptions.Throttled):
    """429 that says which limit, how much, and when to try again."""

    def __init__(self, *, words: str, kind: str, limit: int, wait: float | None) -> None:
        super().__init__(wait=wait)
        self.seconds = max(1, math.ceil(wait or 1))
        self.detail = exceptions.ErrorDetail(words, code="rate_limited")
        self.limit = Limit(kind, used=limit, limit=limit, retry_after=self.seconds)


def handle_exception(error: Exception, context: dict[str, Any]) -> Response:
    """DRF's exception handler: every failure in the one shape, an unexpected one logged and without detail."""
    set_rollback()
    headers: dict[str, str] = {}
    match error:
        case QuotaExceeded():
            if error.limit is not None and error.limit.retry_after is not None:
                headers["Retry-After"] = str(error.limit.retry_after)
            return _respond(
                error.status, error.code, error.message, error.fields, error.hint, headers=headers, limit=error.limit
            )
        case ServiceError():
            return _respond(error.status, error.code, error.message, error.fields, error.hint)
        case Http404():
            return _respond(404, "not_found", str(error) or "Not found.")
        case PermissionDenied():
            return _respond(403, "not_allowed", str(error) or "Not allowed.")
        case RequestDataTooBig():
            most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
            return _respond(413, "too_large", f"The body is too large: at most {most} bytes beside files.")
        case TooManyFieldsSent() | TooManyFilesSent():
            return _respond(413, "too_large", "The form has too many fields or files.")
        case SuspiciousOperation() | UnreadablePostError():
            return _respond(400, "bad_request", "The request cannot be read.", hint="Send it again, whole.")
        case exceptions.ValidationError():
            return _respond(400, "invalid", "Some fields are wrong.", list(_flatten(error.detail)))
        case RateLimited():
            headers["Retry-After"] = str(error.seconds)
            hint = f"Try again in {error.seconds} second(s)."
            return _respond(429, "rate_limited", str(error.detail), hint=hint, headers=headers, limit=error.limit)
        case exceptions.APIException():
            if header := getattr(error, "auth_header", None):
                headers["WWW-Authenticate"] = header
            code = error.get_codes()
            code = code if isinstance(code, str) else error.default_code
            return _respond(error.status_code, code, str(error.detail), headers=headers)
    logger.exception("Unexpected error in %s", context.get("view"), exc_info=error)
    return _respond(500, "internal", INTERNAL, hint=TRY_LATER)


INTERNAL = "Something went wrong on our side; it was logged."
TRY_LATER = "Try again later; if it stays so, tell the operator the X-Request-ID of this answer."


def error_body(
    status_code: int,
    code: str,
    message: str,
    fields: list[FieldError] | None = None,
    hint: str = "",
    limit: Limit | None = None,
) -> dict[str, Any]:
    """The one shape; ``hint`` is the status code's where none is given, ``limit`` is there where one was reached."""
    error: dict[str, Any] = {
        "code": code,
        "message": message,
        "fields": [{"field": item.field, "message": item.message} for item in fields or []],
        "hint": hint or HINTS.get(status_code, ""),
    }
    if limit is not None:
        error["limit"] = limit.as_json()
    return {"error": error}


def _respond(
    status_code: int,
    code: str,
    message: str,
    fields: list[FieldError] | None = None,
    hint: str = "",
    headers: Mapping[str, str] | None = None,
    limit: Limit | None = None,
) -> Response:
    body = error_body(status_code, code, message, fields, hint, limit)
    return Response(body, status=status_code, headers=dict(headers or {}))


def _flatten(detail: Any, prefix: str = "") -> list[FieldError]:
    """DRF's nested validation detail as field errors."""
    if isinstance(detail, dict):
        pairs = [("" if key == "non_field_errors" else str(key), value) for key, value in detail.items()]
    elif isinstance(detail, list) and any(isinstance(item, dict | list) for item in detail):
        pairs = [(str(index), value) for index, value in enumerate(detail)]
    else:
        return [FieldError(prefix, str(item)) for item in (detail if isinstance(detail, list) else [detail])]
    return [
        error for name, value in pairs for error in _flatten(value, ".".join(part for part in (prefix, name) if part))
    ]


# --- what fails before or beside the API's views ----------------------------------------------------------------------

PREFIX = "/api/"


def answer_plain(request: HttpRequest, status_code: int, code: str, message: str, hint: str = "") -> JsonResponse:
    """The one shape for failures outside of any view of the API, such as an unknown address."""
    return JsonResponse(error_body(status_code, code, message, hint=hint), status=status_code)
