"""Graders that read the completion as JSON: the whole text, or one Markdown code block around it."""

from __future__ import annotations

from typing import Any, Literal

import jsonpath
import jsonschema
from pydantic import Field, field_validator

from engine.spec.contract import Contract
from engine.spec.templates import ANSWER, COMPLETION, Template


class JsonSchema(Contract):
    """1 where the completion is JSON that satisfies the schema (draft 2020-12), else 0."""

    type: Literal["json_schema"] = "json_schema"
    input: Template = COMPLETION
    json_schema: dict[str, Any]

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"not a valid JSON schema: {error.message}") from None
        return schema


class JsonPath(Contract):
    """1 where a value picked from the completion's JSON stands to the reference as the operation says, else 0."""

    type: Literal["json_path"] = "json_path"
    input: Template = COMPLETION
    path: str = Field(min_length=1, max_length=500)
    """JSONPath (RFC 9535), e.g. ``$.total`` or ``$.items[*].name``. It must pick at least one value."""
    operation: Literal["exists", "eq", "ne", "like", "ilike", "number", "lt", "le", "gt", "ge"] = "eq"
    """``exists``: the path picks something; ``eq``, ``ne``: equal as JSON where the reference is JSON, else as text;
    ``like``, ``ilike``: the reference is found in the value's text; ``number``: equal within the tolerance; ``lt``,
    ``le``, ``gt``, ``ge``: the value is a number below, at most, above, at least the reference's."""
    reference: Template = ANSWER
    values: Literal["all", "any", "first"] = "all"
    """Which of several picked values must pass."""
    tolerance: float = Field(default=1e-6, ge=0)
    """Absolute tolerance of ``number``."""

    @field_validator("path")
    @classmethod
    def _compiles(cls, path: str) -> str:
        try:
            jsonpath.compile(path, strict=True)
        except (jsonpath.JSONPathError, ValueError, RecursionError) as error:
            raise ValueError(f"not a valid JSON path: {str(error).splitlines()[0][:200]}") from None
        return path
