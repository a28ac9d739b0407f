"""Graders that compare text."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from engine.spec.contract import Contract
from engine.spec.templates import ANSWER, COMPLETION, Template


class ExactMatch(Contract):
    """1 where the completion equals the row's answer, else 0."""

    type: Literal["exact_match"] = "exact_match"
    input: Template = COMPLETION
    reference: Template = ANSWER
    ignore_case: bool = False
    strip: bool = True
    """Ignore white space around both."""


class StringCheck(Contract):
    """1 where the input stands to the reference as the operation says, else 0."""

    type: Literal["string_check"] = "string_check"
    operation: Literal["eq", "ne", "like", "ilike"] = "eq"
    """``eq``: equal; ``ne``: not equal; ``like``: the reference is found in the input; ``ilike``: the same, upper and
    lower case ignored. White space around both never counts."""
    input: Template = COMPLETION
    reference: Template = ANSWER


SimilarityMetric = Literal[
    "fuzzy", "bleu", "chrf", "rouge_1", "rouge_2", "rouge_l", "cosine_words", "cosine_characters"
]


class TextSimilarity(Contract):
    """How alike input and reference are, 0 to 1; with a threshold 1 from there on and 0 below."""

    type: Literal["text_similarity"] = "text_similarity"
    metric: SimilarityMetric = "fuzzy"
    """``fuzzy``: share of characters kept when one is edited into the other (rapidfuzz); ``bleu`` and ``chrf``:
    sentence scores of sacrebleu; ``rouge_1``, ``rouge_2``, ``rouge_l``: F-measure of rouge-score, with stemming;
    ``cosine_words`` and ``cosine_characters``: cosine of the counts of words, or of runs of three characters."""
    input: Template = COMPLETION
    reference: Template = ANSWER
    ignore_case: bool = False
    """Upper and lower case are alike. The rouge metrics and the cosine of words never tell them apart."""
    threshold: float | None = Field(default=None, gt=0, le=1)
    """None: the similarity itself is the score."""


class Regex(Contract):
    """1 where the pattern is found in the completion, else 0. Python's ``re`` syntax, time-limited."""

    type: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=2000)
    input: Template = COMPLETION
    full: bool = False
    """The whole input (stripped) must match."""
    ignore_case: bool = False
    group_equals_answer: bool = False
    """Besides matching, ``group`` must equal the reference."""
    group: str = Field(default="", max_length=100, validate_default=True)
    """Name or number of the group compared; empty: the first one, or the whole match where there is none."""
    compare_as: Literal["text", "number"] = "text"
    """``number``: the last number in each counts, as the grader ``numeric`` reads it."""
    tolerance: float = Field(default=1e-6, ge=0)
    """Absolute tolerance of numbers."""
    reference: Template = ANSWER

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not a valid regular expression: {error}") from None
        return pattern

    @field_validator("group")
    @classmethod
    def _exists(cls, group: str, info: ValidationInfo) -> str:
        if not group or "pattern" not in info.data:
            return group
        pattern = re.compile(info.data["pattern"])
        known = group in pattern.groupindex or (group.isascii() and group.isdigit() and int(group) <= pattern.groups)
        if not known:
            named = f", named {', '.join(pattern.groupindex)}" if pattern.groupindex else ""
            raise ValueError(f"the pattern has no group {group!r}; it has {pattern.groups}{named}")
        return group


class Label(Contract):
    """One label, and what else it may be called."""

    name: str = Field(min_length=1, max_length=200)
    synonyms: list[str] = Field(default_factory=list, max_length=50)

    @field_validator("name", "synonyms")
    @classmethod
    def _not_blank(cls, value: str | list[str]) -> str | list[str]:
        if any(not text.strip() for text in ([value] if isinstance(value, str) else value)):
            raise ValueError("a label must have a character that is not white space")
        return value


class LabelMatch(Contract):
    """1 where the label the completion decides for is the reference's, else 0 or partial credit.

    A label or synonym counts where it stands as words of its own; where two overlap, the longer one counts.
    """

    type: Literal["label_match"] = "label_match"
    labels: list[Label] = Field(min_length=2, max_length=100)
    input: Template = COMPLETION
    reference: Template = ANSWER
    """Must be a label or a synonym."""
    mention: Literal["first", "last", "only"] = "last"
    """Which mention decides; ``only``: there must be no other label."""
    ignore_case: bool = True
    partial_credit: Literal["none", "mentioned", "ordered"] = "none"
    """``mentioned``: 0.5 where the right label is mentioned but another decides; ``ordered``: the labels are a scale,
    and credit falls linearly from the right one to the farthest end of the scale."""

    @field_validator("labels")
    @classmethod
    def _told_apart(cls, labels: list[Label]) -> list[Label]:
        seen: dict[str, str] = {}
        for label in labels:
            for text in [label.name, *label.synonyms]:
                other = seen.setdefault(" ".join(text.casefold().split()), label.name)
                if other != label.name:
                    raise ValueError(f"{text!r} stands for both {other!r} and {label.name!r}")
        if len({" ".join(label.name.casefold().split()) for label in labels}) != len(labels):
            raise ValueError("two labels have the same name")
        return labels
