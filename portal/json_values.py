"""JSON values that every database and browser takes.

PostgreSQL refuses NUL characters, half a surrogate pair cannot be written as UTF-8, and no browser parses NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from portal.errors import FieldError


def make_storable(value: Any) -> Any:
    """Return ``value`` with characters that cannot be stored replaced. Its numbers are finite: the contract's are."""
    match value:
        case str():
            return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
        case dict():
            return {make_storable(key): make_storable(item) for key, item in value.items()}
        case list() | tuple():
            return [make_storable(item) for item in value]
    return value


def unstorable_fields(value: Any) -> list[FieldError]:
    """Return a field error for every number and text that cannot be stored as it is."""
    return [FieldError(".".join(path), message) for path, message in _faults(value, ())]


def _faults(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    match value:
        case float() if not math.isfinite(value):
            yield path, "must be a finite number"
        case str() if make_storable(value) != value:
            yield path, "holds a character that cannot be stored (NUL or half of a surrogate pair)"
        case dict():
            for key, item in value.items():
                yield from _faults(item, (*path, str(key)))
        case list():
            for index, item in enumerate(value):
                yield from _faults(item, (*path, str(index)))
