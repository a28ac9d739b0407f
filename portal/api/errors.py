"""The API's one error shape: ``{"error": {"code", "message", "fields": [{"field", "message"}], "hint"}}``."""

from __future__ import annotations

import logging
import math
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import set_rollback

from portal.errors import FieldError, ServiceError

logger = logging.getLogger(__name__)

HINTS = {
    status.HTTP_401_UNAUTHORIZED: "Make a token on the portal's API tokens page.",
    status.HTTP_403_FORBIDDEN: "Use a token with the scope this needs.",
    status.HTTP_404_NOT_FOUND: "Check the id and that the token belongs to the right tenant.",
}


class RateLimited(exceptions.Throttled):
    """429 that says which limit, how much, and when to try again."""

    def __init__(self, *, kind: str, rate: str, wait: float | None, who: str = "An API token") -> None:
        super().__init__(wait=wait)
        self.seconds = max(1, math.ceil(wait or 1))
        count, _, period = rate.partition("/")
        self.detail = exceptions.ErrorDetail(
            f"{who} may make {count} {kind} requests per {period}.", code="rate_limited"
        )


def handle_exception(error: Exception, context: dict[str, Any]) -> Response:
    """DRF's exception handler: every failure in the one shape, an unexpected one logged and without detail."""
    set_rollback()
    headers: dict[str, str] = {}
    match error:
        case ServiceError():
            return _respond(error.status, error.code, error.message, error.fields, error.hint)
        case Http404():
            return _respond(404, "not_found", str(error) or "Not found.")
        case PermissionDenied():
            return _respond(403, "not_allowed", str(error) or "Not allowed.")
        case exceptions.ValidationError():
            return _respond(400, "invalid", "Some fields are wrong.", list(_flatten(error.detail)))
        case RateLimited():
            headers["Retry-After"] = str(error.seconds)
            hint = f"Try again in {error.seconds} second(s)."
            return _respond(429, "rate_limited", str(error.detail), hint=hint, headers=headers)
        case exceptions.APIException():
            if header := getattr(error, "auth_header", None):
                headers["WWW-Authenticate"] = header
            code = error.get_codes()
            code = code if isinstance(code, str) else error.default_code
            return _respond(error.status_code, code, str(error.detail), headers=headers)
    logger.exception("Unexpected error in %s", context.get("view"), exc_info=error)
    return _respond(500, "internal", "Something went wrong on our side; it was logged.", hint="Try again later.")


def _respond(
    status_code: int,
    code: str,
    message: str,
    fields: list[FieldError] | None = None,
    hint: str = "",
    headers: dict[str, str] | None = None,
) -> Response:
    body = {
        "code": code,
        "message": message,
        "fields": [{"field": item.field, "message": item.message} for item in fields or []],
        "hint": hint or HINTS.get(status_code, ""),
    }
    return Response({"error": body}, status=status_code, headers=headers)


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
