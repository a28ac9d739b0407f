"""The first rows of an upload under a mapping: what the tenant sees before anything is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portal.datasets.mapping import Column, FieldMapping, guess_mapping, list_columns, map_row
from portal.datasets.models import DatasetUpload
from portal.datasets.parsing import LineError, RowInvalid, excerpt
from portal.datasets.selectors import read_upload_start

LOOKED_AT = 100
"""Rows that columns are found in."""


@dataclass(frozen=True)
class PreviewRow:
    """A row as it would be stored, or its faults."""

    line: int
    row: dict[str, Any] | None
    faults: list[LineError]


@dataclass(frozen=True)
class Preview:
    """What the start of an upload says."""

    columns: list[Column]
    mapping: FieldMapping | None
    rows: list[PreviewRow]
    problem: str
    """What stops the reading; empty: nothing does."""


def preview_upload(upload: DatasetUpload, mapping: FieldMapping | None = None, *, limit: int = 5) -> Preview:
    """The first ``limit`` rows of a complete upload, under the guessed mapping where none is given."""
    records, problem = read_upload_start(upload, max(limit, LOOKED_AT))
    columns = list_columns([record.data for record in records if record.data is not None])
    mapping = mapping or guess_mapping(columns)
    rows = []
    for record in records[:limit]:
        try:
            if record.data is None:
                raise record.invalid or RowInvalid()
            rows.append(PreviewRow(record.line, map_row(record.data, mapping), []))
        except RowInvalid as invalid:
            faults = [LineError(record.line, name, said, excerpt(value)) for name, said, value in invalid.faults]
            rows.append(PreviewRow(record.line, None, faults))
    return Preview(columns, mapping, rows, problem)
