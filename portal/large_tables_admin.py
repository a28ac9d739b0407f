"""Admin of tables that grow with what jobs do, to millions of rows: no page counts, sorts or scans all of one.

Rows are counted, and can be paged to, up to ``COUNTED``; lists follow the primary key, those of one job its index; what
is searched for is the id of a job.
"""

from __future__ import annotations

import uuid
from typing import Any, cast

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from portal.read_only_admin import ReadOnly

COUNTED = 10_000


class AtLeast(int):
    """A count that was given up: ``10,000+`` for people."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


class CappedPaginator(Paginator):
    """Counts no further than ``COUNTED``."""

    @cached_property
    def count(self) -> int:
        rows = cast(QuerySet[Any], self.object_list)
        found = rows.order_by()[: COUNTED + 1].count()
        return found if found <= COUNTED else AtLeast(COUNTED)


class LargeTableAdmin(ReadOnly, admin.ModelAdmin):
    """Newest first by the primary key, not to be sorted otherwise: no index would serve it."""

    paginator = CappedPaginator
    show_full_result_count = False
    sortable_by = ()
    ordering = ["-pk"]


class RowsOfJobsAdmin(LargeTableAdmin):
    """Of a table with ``job`` and ``seq``: the newest rows of all jobs, or one job's (``?q=<id of the job>``)."""

    list_select_related = ["job"]
    search_fields = ["job__id"]
    search_help_text = "The id of a job."

    def get_ordering(self, request: HttpRequest) -> Any:
        return ["job_id", "-seq"] if self.is_of_one_job(request) else ["-pk"]

    def is_of_one_job(self, request: HttpRequest) -> bool:
        return bool(request.GET.get("q") or request.GET.get("job__id__exact"))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return narrow_to_id(queryset, "job_id", search_term), False


def narrow_to_id(queryset: QuerySet[Any], field: str, text: str) -> QuerySet[Any]:
    """Those whose ``field`` is the id ``text``; none where it is no id, all where it is empty."""
    text = text.strip()
    if not text:
        return queryset
    try:
        return queryset.filter(**{field: uuid.UUID(text)})
    except ValueError:
        return queryset.none()
