"""Graders of a completion's form, not of what it says. Use them inside a mix."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from engine.spec.contract import Contract
from engine.spec.templates import COMPLETION, Template


class Brevity(Contract):
    """1 up to ``target`` characters, falling linearly to 0 at ``limit``: shapes length; use it inside a mix."""

    type: Literal["brevity"] = "brevity"
    input: Template = COMPLETION
    target: int = Field(ge=1)
    limit: int = Field(ge=2)

    @field_validator("limit")
    @classmethod
    def _ordered(cls, limit: int, info: ValidationInfo) -> int:
        if limit <= info.data.get("target", 0):
            raise ValueError("limit must be greater than target")
        return limit


class LengthWindow(Contract):
    """1 where the length lies between two bounds, falling linearly to 0 within ``slack`` beyond them."""

    type: Literal["length_window"] = "length_window"
    input: Template = COMPLETION
    unit: Literal["characters", "words"] = "words"
    """Words are runs of characters that are not white space."""
    minimum: int = Field(default=0, ge=0, le=1_000_000)
    maximum: int = Field(ge=1, le=1_000_000)
    slack: int = Field(default=0, ge=0, le=1_000_000)
    """How far beyond a bound still gets something; 0: nothing beyond."""

    @field_validator("maximum")
    @classmethod
    def _ordered(cls, maximum: int, info: ValidationInfo) -> int:
        if maximum < info.data.get("minimum", 0):
            raise ValueError("maximum must be at least minimum")
        return maximum


Tag = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]
Heading = Annotated[str, Field(min_length=1, max_length=100)]


class Format(Contract):
    """1 where the completion has the tags and sections asked for, in this order, else 0 or a share.

    A tag is ``<name>...</name>`` and must stand exactly once. A section begins with a line that is its heading, with or
    without Markdown marks (``#``, ``**``) and colon.
    """

    type: Literal["format"] = "format"
    input: Template = COMPLETION
    tags: list[Tag] = Field(default_factory=list, max_length=20)
    sections: list[Heading] = Field(default_factory=list, max_length=20, validate_default=True)
    nothing_outside: bool = False
    """Outside the tags only white space may stand."""
    partial_credit: bool = False
    """The score is the share of what was asked for: each tag, each section, each order, nothing outside."""

    @field_validator("tags", "sections")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if len({name.strip().casefold() for name in names}) != len(names):
            raise ValueError("a name stands twice")
        if any(not name.strip() for name in names):
            raise ValueError("a name is blank")
        return names

    @field_validator("sections")
    @classmethod
    def _asks_for_something(cls, sections: list[str], info: ValidationInfo) -> list[str]:
        if not sections and "tags" in info.data and not info.data["tags"]:
            raise ValueError("name at least one tag or one section")
        return sections

    @field_validator("nothing_outside")
    @classmethod
    def _outside_of_tags(cls, nothing_outside: bool, info: ValidationInfo) -> bool:
        if nothing_outside and "tags" in info.data and not info.data["tags"]:
            raise ValueError("nothing can stand outside of tags where no tag is asked for")
        return nothing_outside
