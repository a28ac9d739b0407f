"""How an episode is scored: graders, a weighted mix of them, limits."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import jsonschema
from pydantic import Field, field_validator, model_validator

from engine.spec.contract import Contract

# Every grader scores one completion of one row in [0, 1]. ``accuracy`` of an episode is 1 where its total is >= 0.999.


class ExactMatch(Contract):
    """1 where the completion equals the row's answer, else 0."""

    type: Literal["exact_match"] = "exact_match"
    ignore_case: bool = False
    strip: bool = True
    """Ignore white space around both."""


class Numeric(Contract):
    """1 where the completion's number equals the answer's within the tolerance.

    The number is the last one in the completion, thousands separators and currency signs allowed.
    """

    type: Literal["numeric"] = "numeric"
    tolerance: float = Field(default=1e-6, ge=0)
    """Absolute tolerance."""


class Maths(Contract):
    """1 where completion and answer are mathematically equivalent (LaTeX or plain), by math-verify."""

    type: Literal["maths"] = "maths"


class Regex(Contract):
    """1 where the pattern is found in the completion, else 0. Python's ``re`` syntax, time-limited."""

    type: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=2000)
    full: bool = False
    """The whole completion (stripped) must match."""
    ignore_case: bool = False
    group_equals_answer: bool = False
    """Besides matching, the first group (or the whole match where there is none) must equal the row's answer."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not a valid regular expression: {error}") from None
        return pattern


class JsonSchema(Contract):
    """1 where the completion is JSON that satisfies the schema (draft 2020-12), else 0."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any]

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"not a valid JSON schema: {error.message}") from None
        return schema


class Brevity(Contract):
    """1 up to ``target`` characters, falling linearly to 0 at ``limit``: shapes length; use it inside a mix."""

    type: Literal["brevity"] = "brevity"
    target: int = Field(ge=1)
    limit: int = Field(ge=2)

    @model_validator(mode="after")
    def _ordered(self) -> Brevity:
        if self.limit <= self.target:
            raise ValueError("limit must be greater than target")
        return self


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
    high: float = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> EnvironmentReward:
        if self.high <= self.low:
            raise ValueError("high must be greater than low")
        return self


class MixPart(Contract):
    """One named, weighted part of a mix."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    weight: float = Field(gt=0, le=1000)
    grader: SimpleGrader


class Mix(Contract):
    """Weighted mean of named graders: sum(weight * score) / sum(weight)."""

    type: Literal["mix"] = "mix"
    parts: list[MixPart] = Field(min_length=1, max_length=16)

    @field_validator("parts")
    @classmethod
    def _unique(cls, parts: list[MixPart]) -> list[MixPart]:
        names = [part.name for part in parts]
        if len(set(names)) != len(names):
            raise ValueError("two parts have the same name")
        return parts


SimpleGrader = Annotated[
    ExactMatch | Numeric | Maths | Regex | JsonSchema | Brevity | ReasoningGymScore | EnvironmentReward,
    Field(discriminator="type"),
]
Grader = Annotated[
    ExactMatch | Numeric | Maths | Regex | JsonSchema | Brevity | ReasoningGymScore | EnvironmentReward | Mix,
    Field(discriminator="type"),
]
MixPart.model_rebuild()
Mix.model_rebuild()


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
