"""How the OpenAPI schema describes what is common to all operations."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from portal.api.permissions import needed_scope
from portal.tenants.models import Scope

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Any text of up to 200 characters. Sent again with the same request within a day, the request is not "
    "carried out a second time and gets the answer of the first; with another request it answers 409.",
)


class ScopedSchema(AutoSchema):
    """Each operation says which scope it needs, in its description and as ``x-required-scope``."""

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular has it
        return f"{super().get_description() or ''}\n\nNeeds the scope `{self._scope().value}`.".strip()

    def get_extensions(self) -> dict[str, Any]:
        return {**super().get_extensions(), "x-required-scope": self._scope().value}

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Every POST may meet an idempotency key that stands for another request."""
        operation = super().get_operation(*args, **kwargs)
        if operation and self.method == "POST" and "400" in operation["responses"]:
            refused = operation["responses"]["400"]
            operation["responses"].setdefault("409", {**refused, "description": "The idempotency key is in use."})
        return operation

    def get_override_parameters(self) -> list[Any]:
        """The filters of a list, and the header every POST may carry."""
        if self.method == "POST":
            return [IDEMPOTENCY_KEY]
        query = getattr(self.view, "query_serializer", None)
        return [query] if query and query().fields and self._is_list_view() else []

    def _scope(self) -> Scope:
        return needed_scope(self.view, self.method)
