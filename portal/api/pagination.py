"""Pages by cursor: what is added or removed meanwhile neither repeats nor hides an entry; page 200 costs as page 1."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request


class Pages(CursorPagination):
    """``?page_size=100``, then the addresses ``next`` and ``previous`` of the answer, until they are null."""

    page_size = 50
    max_page_size = 200
    page_size_query_param = "page_size"
    page_size_query_description = f"Entries per page, 1 to {max_page_size}."
    cursor_query_description = "Part of the addresses 'next' and 'previous' of an answer; they hold the filters too."
    offset_cutoff = 1000
    invalid_cursor_message = "is none of this list"

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        return tuple(view.ordering)

    def get_page_size(self, request: Request) -> int:
        given = request.query_params.get(self.page_size_query_param)
        if given is None:
            return self.page_size
        if not (given.isascii() and given.isdigit() and len(given) < 5 and 1 <= int(given) <= self.max_page_size):
            raise ValidationError(
                {self.page_size_query_param: f"must be a whole number from 1 to {self.max_page_size}"}
            )
        return int(given)

    def decode_cursor(self, request: Request) -> Any:
        try:
            return super().decode_cursor(request)
        except NotFound:
            raise ValidationError({self.cursor_query_param: self.invalid_cursor_message}) from None

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        size = {"type": "integer", "minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
        return [
            self._parameter(self.cursor_query_param, {"type": "string"}, self.cursor_query_description),
            self._parameter(self.page_size_query_param, size, self.page_size_query_description),
        ]

    def _parameter(self, name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
        return {"name": name, "required": False, "in": "query", "description": description, "schema": schema}
