"""A model as the judge."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from engine.spec.contract import Contract
from engine.spec.templates import Template, check_template

PROMPT = """\
Grade the answer to the question. Say how good it is from 0 (wrong) to 10 (right and clear).

Question:
{{ row.prompt }}

Reference answer:
{{ row.answer }}

Answer to grade:
{{ sample.completion }}

Reply with the number only."""


LabelName = Annotated[str, Field(min_length=1, max_length=200)]


class Judge(Contract):
    """The job's own base model, without its adapter, reads a prompt and its reply is read as the score.

    The reply is a number from ``low`` to ``high`` (its last one), mapped to 0..1, or one of ``labels``. A reply that is
    neither is an error. What the judge samples counts to the job like its own samples. It has no time limit of its
    own, for it waits in the same queue as the job's rollouts; ``max_tokens`` bounds it.
    """

    type: Literal["judge"] = "judge"
    prompt: Annotated[Template, Field(min_length=1)] = PROMPT
    """The user message."""
    system_prompt: Template = ""
    labels: dict[LabelName, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict, max_length=50)
    """Label -> score. The last label the reply mentions counts, as words of its own, upper and lower case alike. Empty:
    the reply is a number."""
    low: float = 0.0
    high: float = Field(default=10.0, validate_default=True)
    max_tokens: int = Field(default=32, ge=1, le=1024)
    """Longest reply."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """0: the same sample gets the same score every time."""

    @field_validator("prompt")
    @classmethod
    def _sees_the_sample(cls, prompt: str) -> str:
        if "sample." not in check_template(prompt):
            raise ValueError("the judge must see what it grades: put {{ sample.completion }} into the prompt")
        return prompt

    @field_validator("labels")
    @classmethod
    def _told_apart(cls, labels: dict[str, float]) -> dict[str, float]:
        names = [" ".join(label.casefold().split()) for label in labels]
        if not all(names) or len(set(names)) != len(names):
            raise ValueError("labels must not be blank, and must differ in more than upper and lower case")
        if labels and len(set(labels.values())) == 1:
            raise ValueError("all labels have the same score, so the judge would tell nothing apart")
        return labels

    @field_validator("high")
    @classmethod
    def _ordered(cls, high: float, info: ValidationInfo) -> float:
        if high <= info.data.get("low", -float("inf")):
            raise ValueError("high must be greater than low")
        return high
