"""Rows to try a reward on: one that was sent, one line of a dataset version, or lines drawn from it by chance.

Invariant: a file is read line by line, never whole.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from portal.datasets.models import DatasetVersion
from portal.datasets.parsing import RowInvalid, parse_line
from portal.errors import FieldError, InvalidInput


def parse_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row as in an upload, as JSON of ``DatasetRow``. Raises InvalidInput with ``row.<field>`` for each fault."""
    try:
        return parse_line(json.dumps(row).encode())
    except RowInvalid as error:
        fields = [FieldError(f"row.{name}" if name else "row", message) for name, message, *_ in error.faults]
        raise InvalidInput("The row cannot be used.", fields=fields) from None


def read_row(version: DatasetVersion, line: int) -> tuple[int, dict[str, Any]]:
    """(line counted from 0, row). Raises InvalidInput where the version has no such line (counted from 1)."""
    if not 1 <= line <= version.rows:
        raise InvalidInput(
            "The row cannot be used.", fields=[FieldError("line", f"must be between 1 and {version.rows}")]
        )
    (found,) = _lines(version, {line - 1})
    return found


def sample_rows(version: DatasetVersion, count: int, seed: int) -> list[tuple[int, dict[str, Any]]]:
    """At most ``count`` rows in file order; which ones depends on the seed alone."""
    return list(_lines(version, set(random.Random(seed).sample(range(version.rows), min(count, version.rows)))))


def _lines(version: DatasetVersion, wanted: set[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    last = max(wanted)
    with version.path.open("rb") as file:
        for number, line in enumerate(file):
            if number in wanted:
                yield number, json.loads(line)
            if number == last:
                return
