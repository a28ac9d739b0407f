"""Usage as CSV for spreadsheets: one line for each job and day."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import Q

from portal.tenants.models import Tenant
from portal.usage.models import UsageRecord
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
PAGE = 1_000
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would take a cell that starts with one of these for a formula."""


async def stream_csv(tenant: Tenant, period: Period) -> AsyncIterator[str]:
    """The file, a page of records at a time: none waits in memory, no cursor stays open while the client reads."""
    yield _csv_text([COLUMNS])
    last = None
    while page := await sync_to_async(_page)(tenant, period, last):
        yield _csv_text(_row(record) for record in page)
        last = page[-1]


def _page(tenant: Tenant, period: Period, last: UsageRecord | None) -> list[UsageRecord]:
    """The records that follow ``last``, in the order of an index: each page begins where the one before ended."""
    records = list_records(tenant, period)
    if last is not None:
        records = records.filter(Q(day__gt=last.day) | Q(pk__gt=last.pk), day__gte=last.day)
    return list(records.order_by("day", "pk")[:PAGE])


def _row(record: UsageRecord) -> list[Any]:
    return [
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


def _csv_text(rows: Iterable[Iterable[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue()


def _text(value: str) -> str:
    return f"'{value}" if value.startswith(FORMULA_STARTS) else value
