"""Graders that take their score from somewhere else."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from engine.spec.contract import Contract


class ReasoningGymScore(Contract):
    """The scorer of a reasoning-gym dataset: partial credit where that dataset gives it.

    What stands in the completion's last ``<answer>`` tag is scored, and the whole completion where there is none. The
    row is a reasoning-gym entry: its last message the question, its answer and metadata the entry's.
    """

    type: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: str = Field(pattern=r"^[a-z0-9_]{1,64}$")
    """Name of a reasoning-gym dataset, e.g. ``countdown``."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Its settings, as the rows were made with."""


class EnvironmentReward(Contract):
    """What the environment itself says of the episode: one of its reward parts, ``low``..``high`` mapped to 0..1.

    Values beyond are clipped. An episode that a limit ended before the environment gave the part scores 0.
    """

    type: Literal["environment"] = "environment"
    part: str = Field(default="reward", pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Name of the part. Environments with one reward call it ``reward``."""
    low: float = 0.0
    high: float = Field(default=1.0, validate_default=True)

    @field_validator("high")
    @classmethod
    def _ordered(cls, high: float, info: ValidationInfo) -> float:
        if high <= info.data.get("low", -float("inf")):
            raise ValueError("high must be greater than low")
        return high
