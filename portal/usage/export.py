"""Usage as CSV for spreadsheets: one line for each job and day."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from portal.tenants.models import Tenant
from portal.usage.periods import Period
from portal.usage.selectors import list_records

COLUMNS = (
    "day",
    "job_id",
    "job",
    "member",
    "steps",
    "evaluations",
    "tokens_sampled",
    "tokens_trained",
    "accelerator_seconds",
)
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would take a cell that starts with one of these for a formula."""


class _Echo:
    def write(self, line: str) -> str:
        return line


def iterate_csv(tenant: Tenant, period: Period) -> Iterator[str]:
    """The file, line by line."""
    writer = csv.writer(_Echo())
    yield writer.writerow(COLUMNS)
    for record in list_records(tenant, period).iterator(chunk_size=1000):
        yield writer.writerow(
            [
                record.day.isoformat(),
                record.job_id or "",
                _text(record.job_name),
                _text(record.member_name),
                record.steps,
                record.evaluations,
                record.tokens_sampled,
                record.tokens_trained,
                f"{record.accelerator_seconds:.3f}",
            ]
        )


def _text(value: str) -> str:
    return f"'{value}" if value.startswith(FORMULA_STARTS) else value
