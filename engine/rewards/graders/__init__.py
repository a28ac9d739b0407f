"""The declarative graders: pure functions from (grader, sample) to a score, a module for each family.

Invariants: a score is finite and in [0, 1]; a bad completion scores 0 with a reason; a grading that could not be done
(the reference is unusable, a template's value is not there, the schema refers to nowhere) is an error, so the tenant
sees that the reward, not the model, is at fault.

A pattern or a formula can run for ever: outside tests, call these in a grading process (:mod:`engine.rewards.runner`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.rewards.graders.external import ENVIRONMENT_PARTS, environment, reasoning_gym
from engine.rewards.graders.labels import label_match
from engine.rewards.graders.numeric import maths, numeric
from engine.rewards.graders.shape import brevity, format, length_window
from engine.rewards.graders.similarity import load, text_similarity
from engine.rewards.graders.source import GraderError, Source, template_values
from engine.rewards.graders.structured import json_path, json_schema
from engine.rewards.graders.text import exact_match, regex, string_check
from engine.spec import (
    Brevity,
    DeclarativeGrader,
    EnvironmentReward,
    ExactMatch,
    Format,
    JsonPath,
    JsonSchema,
    LabelMatch,
    LengthWindow,
    Maths,
    Numeric,
    ReasoningGymScore,
    Regex,
    StringCheck,
    TextSimilarity,
)
from engine.spec.templates import MissingValue
from engine.types import Sample, Score

_GRADERS: dict[type, Callable[[Any, Source], Score]] = {
    ExactMatch: exact_match,
    StringCheck: string_check,
    TextSimilarity: text_similarity,
    Numeric: numeric,
    Maths: maths,
    Regex: regex,
    LabelMatch: label_match,
    JsonSchema: json_schema,
    JsonPath: json_path,
    Brevity: brevity,
    LengthWindow: length_window,
    Format: format,
    ReasoningGymScore: reasoning_gym,
    EnvironmentReward: environment,
}


def grade(grader: DeclarativeGrader, sample: Sample) -> Score:
    """Score one sample. What it raises is the grader's fault; the caller makes it an error score."""
    try:
        return _GRADERS[type(grader)](grader, Source(sample))
    except (GraderError, MissingValue) as error:
        return Score(0.0, reason=str(error), error=True, error_kind="grader")


def preload(grader: DeclarativeGrader) -> None:
    """Import what a grader needs, so that it does not count as time of its first grading."""
    match grader:
        case Maths():
            import engine.rewards.maths  # noqa: F401
        case ReasoningGymScore():
            import reasoning_gym  # noqa: F401
        case TextSimilarity(metric=metric):
            load(metric)


__all__ = ["ENVIRONMENT_PARTS", "GraderError", "Source", "grade", "preload", "template_values"]
