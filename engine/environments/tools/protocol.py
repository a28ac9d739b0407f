"""What a tool is."""

from __future__ import annotations

from typing import Any, Protocol


class ToolError(Exception):
    """The call cannot be answered. The message tells the model what to change."""


class Tool(Protocol):
    """One tool. Shared by all episodes of a job: a call leaves nothing behind."""

    name: str
    description: str
    """For the model."""
    parameters: dict[str, Any]
    """JSON schema of the arguments, an object."""

    async def call(self, arguments: dict[str, Any]) -> str:
        """Answer a call whose arguments satisfy the schema. Raises ToolError."""
