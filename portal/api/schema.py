"""How the OpenAPI schema describes what is common to all operations."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema

from portal.api.permissions import needed_scope
from portal.tenants.models import Scope


class ScopedSchema(AutoSchema):
    """Each operation says which scope it needs, in its description and as ``x-required-scope``."""

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular has it
        return f"{super().get_description() or ''}\n\nNeeds the scope `{self._scope().value}`.".strip()

    def get_extensions(self) -> dict[str, Any]:
        return {**super().get_extensions(), "x-required-scope": self._scope().value}

    def _scope(self) -> Scope:
        return needed_scope(self.view, self.method)
