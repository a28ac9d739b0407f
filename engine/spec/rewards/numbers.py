"""Graders that compare numbers and formulas."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.spec.contract import Contract
from engine.spec.templates import ANSWER, COMPLETION, Template


class Numeric(Contract):
    """1 where the completion's number equals the answer's within the tolerance.

    The number is the last one in the text, thousands separators and currency signs allowed. The larger of the two
    tolerances counts.
    """

    type: Literal["numeric"] = "numeric"
    input: Template = COMPLETION
    reference: Template = ANSWER
    tolerance: float = Field(default=1e-6, ge=0)
    """Absolute tolerance."""
    relative_tolerance: float = Field(default=0.0, ge=0, lt=1)
    """As a share of the reference: 0.01 accepts 1 % more or less."""


class Maths(Contract):
    """1 where completion and answer are mathematically equivalent (LaTeX or plain), by math-verify."""

    type: Literal["maths"] = "maths"
    input: Template = COMPLETION
    reference: Template = ANSWER
