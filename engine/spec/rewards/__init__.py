"""How an episode is scored: graders, a mix of them by weights or by formula, limits.

Every grader scores one sample in [0, 1]. ``accuracy`` of an episode is 1 where its total is >= 0.999. Where a grader
takes text, that is a template (``engine.spec.templates``); its defaults are the completion and the row's answer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from engine.spec.contract import Contract
from engine.spec.formulas import FUNCTION_NAMES, MAX_CHARACTERS, check_formula
from engine.spec.rewards.external import EnvironmentReward, ReasoningGymScore
from engine.spec.rewards.judge import Judge
from engine.spec.rewards.numbers import Maths, Numeric
from engine.spec.rewards.shape import Brevity, Format, LengthWindow
from engine.spec.rewards.structured import JsonPath, JsonSchema
from engine.spec.rewards.text import ExactMatch, Label, LabelMatch, Regex, StringCheck, TextSimilarity
from engine.spec.sandboxed import CodeTests, Python

DeclarativeGrader = (
    ExactMatch
    | StringCheck
    | TextSimilarity
    | Numeric
    | Maths
    | Regex
    | LabelMatch
    | JsonSchema
    | JsonPath
    | Brevity
    | LengthWindow
    | Format
    | ReasoningGymScore
    | EnvironmentReward
)
"""Runs in the grading processes."""
SandboxedGrader = Python | CodeTests
"""Runs in the sandbox."""
SimpleGrader = Annotated[DeclarativeGrader | SandboxedGrader | Judge, Field(discriminator="type")]


class MixPart(Contract):
    """One named part of a mix."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    weight: float = Field(default=1.0, gt=0, le=1000)
    """Without meaning where the mix has a formula."""
    grader: SimpleGrader


class Mix(Contract):
    """Several named graders in one: their weighted mean, sum(weight * score) / sum(weight), or a formula over them."""

    type: Literal["mix"] = "mix"
    parts: list[MixPart] = Field(min_length=1, max_length=16)
    formula: str | None = Field(default=None, max_length=MAX_CHARACTERS)
    """Over the parts' names, e.g. ``correct * (0.8 + 0.2 * short)``; see ``engine.spec.formulas``. None: the weighted
    mean. A part it does not name is shown beside the score."""
    clip: bool = True
    """A formula's result beyond 0..1 is clipped; False: it is an error."""

    @field_validator("parts")
    @classmethod
    def _unique(cls, parts: list[MixPart]) -> list[MixPart]:
        names = [part.name for part in parts]
        if len(set(names)) != len(names):
            raise ValueError("two parts have the same name")
        return parts

    @field_validator("formula")
    @classmethod
    def _over_the_parts(cls, formula: str | None, info: ValidationInfo) -> str | None:
        if formula is None or "parts" not in info.data:  # what is wrong with the parts is said there
            return formula
        names = [part.name for part in info.data["parts"]]
        if taken := FUNCTION_NAMES.intersection(names):
            raise ValueError(f"a part is called {min(taken)}, which the formula has as a function; rename the part")
        check_formula(formula, names)
        return formula


Grader = Annotated[DeclarativeGrader | SandboxedGrader | Judge | Mix, Field(discriminator="type")]


class RewardErrorPolicy(Contract):
    """What becomes of an episode whose reward, or environment, failed instead of scoring. Evaluations score it 0."""

    mode: Literal["score_zero", "drop_episode", "fail_job"] = "score_zero"
    """``score_zero``: it scores 0. ``drop_episode``: it is left out, so that the advantages of its group are those of
    the episodes that were scored; a group left with fewer than 2 of them is dropped. ``fail_job``: it scores 0, and
    the job fails once there are more errors than ``max_fraction`` allows, by default at the first."""
    max_fraction: float | None = Field(default=None, ge=0, le=1)
    """The job fails, in any mode, when a larger share of the episodes of the last ``window_batches`` batches failed.
    None: never, but with ``fail_job`` 0."""
    window_batches: int = Field(default=5, ge=1, le=1000)
    """Batches over which the share is taken; as many as there are in the beginning."""

    @property
    def allowed_fraction(self) -> float:
        """``max_fraction``, or what the mode makes of None."""
        if self.max_fraction is not None:
            return self.max_fraction
        return 0.0 if self.mode == "fail_job" else 1.0


class RewardSpec(Contract):
    """How an episode is scored."""

    grader: Grader
    timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    """Wall-clock limit of one grading. Past it the grading process is killed and the episode scores 0, as an error."""


def leaf_graders(grader: Grader) -> list[SimpleGrader]:
    """The grader itself, or the parts of a mix."""
    return [part.grader for part in grader.parts] if isinstance(grader, Mix) else [grader]


__all__ = [
    "Brevity",
    "CodeTests",
    "DeclarativeGrader",
    "EnvironmentReward",
    "ExactMatch",
    "Format",
    "Grader",
    "JsonPath",
    "JsonSchema",
    "Judge",
    "Label",
    "LabelMatch",
    "LengthWindow",
    "Maths",
    "Mix",
    "MixPart",
    "Numeric",
    "Python",
    "ReasoningGymScore",
    "Regex",
    "RewardErrorPolicy",
    "RewardSpec",
    "SandboxedGrader",
    "SimpleGrader",
    "StringCheck",
    "TextSimilarity",
    "leaf_graders",
]
