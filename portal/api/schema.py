"""How the OpenAPI schema describes what is common to all operations."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from portal.api.permissions import needed_scopes

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Any text of up to 200 characters. Sent again with the same request within a day, the request is not "
    "carried out a second time and gets the answer of the first; with another request it answers 409.",
)


class ScopedSchema(AutoSchema):
    """Each operation says which scopes it needs, in its description and as ``x-required-scope``."""

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular has it
        scopes = self._scopes()
        named = " and ".join(f"`{scope}`" for scope in scopes)
        noun = "scope" if len(scopes) == 1 else "scopes"
        return f"{super().get_description() or ''}\n\nNeeds the {noun} {named}.".strip()

    def get_extensions(self) -> dict[str, Any]:
        """Where several are needed, they are separated by spaces, as OAuth does."""
        return {**super().get_extensions(), "x-required-scope": " ".join(self._scopes())}

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

    def _scopes(self) -> list[str]:
        return [scope.value for scope in needed_scopes(self.view, self.method)]
