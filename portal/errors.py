"""What services refuse, in one shape for pages, API and management commands.

Invariant: a message is plain words that say what to do; ``field`` is the name the sender used (dotted for nested
settings, e.g. ``lora.rank``), empty where no single field is to blame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError


@dataclass(frozen=True)
class FieldError:
    """One thing wrong with what was sent."""

    field: str
    message: str


@dataclass(frozen=True)
class Limit:
    """A limit that was reached, for programs; the message says the same in words."""

    kind: str
    """Of ``portal.usage.models.QuotaKind``, or the name of another limit."""
    used: float
    limit: float
    resets_at: datetime | None = None
    """When it starts anew; None for what does not."""
    retry_after: int | None = None
    """Seconds after which trying again makes sense; None where that depends on what is done meanwhile."""

    def as_json(self) -> dict[str, Any]:
        resets_at = self.resets_at.isoformat() if self.resets_at else None
        return {**asdict(self), "resets_at": resets_at}


class ServiceError(Exception):
    """Base of everything a service refuses."""

    code = "refused"
    status = 400

    def __init__(self, message: str, *, fields: Iterable[FieldError] = (), hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fields = list(fields)
        self.hint = hint


class InvalidInput(ServiceError):
    """Some fields are wrong; ``fields`` says which."""

    code = "invalid"


class QuotaExceeded(ServiceError):
    """A tenant's limit is reached."""

    code = "quota_exceeded"
    status = 409

    def __init__(
        self, message: str, *, fields: Iterable[FieldError] = (), hint: str = "", limit: Limit | None = None
    ) -> None:
        super().__init__(message, fields=fields, hint=hint)
        self.limit = limit


class TooMany(QuotaExceeded):
    """A limit that frees itself in a moment."""

    code = "rate_limited"
    status = 429


class Conflict(ServiceError):
    """The request contradicts what exists."""

    code = "conflict"
    status = 409


class NotAllowed(ServiceError):
    """The user's role in the tenant does not permit it."""

    code = "not_allowed"
    status = 403


def field_errors(error: ValidationError, data: Any, *, prefix: str = "") -> list[FieldError]:
    """Translate a pydantic error about ``data`` into field errors in plain words."""
    found = []
    for item in error.errors(include_url=False):
        message = _plain_message(item)
        name = ".".join([*([prefix] if prefix else []), *_path(item["loc"], data)])
        first_word = message.split(" ", 1)[0]
        if not item["loc"] and "." in first_word:  # a rule across fields names the one to change first
            name = first_word
        found.append(FieldError(name, message))
    return found


def _path(location: tuple[int | str, ...], data: Any) -> list[str]:
    """Names along ``location``, without the union tags pydantic puts in between (they are values, not names)."""
    names = []
    tagged: Any = None
    for part in location:
        if isinstance(data, Mapping) and part == data.get("type") and data is not tagged:
            tagged = data
            continue
        names.append(str(part))
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            data = None
    return names


_PLAIN = {
    "missing": "is required",
    "extra_forbidden": "is not a known setting; check the spelling",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} items",
    "literal_error": "must be one of {expected}",
    "union_tag_invalid": "type {tag!r} is unknown; choose one of {expected_tags}",
    "union_tag_not_found": "needs a 'type'",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}


def _plain_message(item: Any) -> str:
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    template = _PLAIN.get(item["type"])
    if template is None:
        return item["msg"]
    return template.format(**{name: plain_number(value) for name, value in item.get("ctx", {}).items()})


def plain_number(value: Any) -> Any:
    """``0.0`` -> ``0``: numbers of fractional settings as people write them."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
