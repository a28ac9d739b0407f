"""The built-in graders: pure functions from (grader, completion, row) to a score.

Invariants: a score is finite and in [0, 1]; a bad completion scores 0 with a reason; a grading that could not be done
(the row's answer is unusable, the schema refers to nowhere) is an error, so the tenant sees that the reward, not the
model, is at fault.

A pattern or a formula can run for ever: outside tests, call these in a grading process (:mod:`engine.rewards.runner`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import jsonschema_specifications
import referencing.exceptions

from engine.rewards.numbers import last_number
from engine.spec import (
    Brevity,
    DatasetRow,
    EnvironmentReward,
    ExactMatch,
    Grader,
    JsonSchema,
    Maths,
    Mix,
    Numeric,
    ReasoningGymScore,
    Regex,
    SimpleGrader,
)
from engine.types import Score

SHOWN_CHARACTERS = 80
ENVIRONMENT_PARTS = "environment_parts"
"""Key of a row's metadata under which graders find the reward parts the environment gave this episode."""
FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


def grade(grader: Grader, completion: str, row: DatasetRow) -> Score:
    """Score one completion of one row. What it raises is the grader's fault; the caller makes it an error score."""
    if isinstance(grader, Mix):
        return _mix(grader, completion, row)
    return _grade_simple(grader, completion, row)


def _grade_simple(grader: SimpleGrader, completion: str, row: DatasetRow) -> Score:
    function: Callable[[Any, str, DatasetRow], Score] = _GRADERS[type(grader)]
    return function(grader, completion, row)


def _mix(grader: Mix, completion: str, row: DatasetRow) -> Score:
    """Weighted mean of the parts. A part that fails makes the whole an error: a mean without it is another reward."""
    scores = {part.name: _grade_simple(part.grader, completion, row) for part in grader.parts}
    parts = {name: score.total for name, score in scores.items()}
    reason = "; ".join(f"{name}: {score.reason}" for name, score in scores.items() if score.reason)
    if any(score.error for score in scores.values()):
        return Score(0.0, parts, reason, error=True)
    weight = sum(part.weight for part in grader.parts)
    total = sum(part.weight * parts[part.name] for part in grader.parts) / weight
    return Score(min(max(total, 0.0), 1.0), parts, reason)


def _exact_match(grader: ExactMatch, completion: str, row: DatasetRow) -> Score:
    if _same(completion, row.answer, grader.ignore_case, grader.strip):
        return Score(1.0)
    return Score(0.0, reason=f"expected {_shown(row.answer)}")


def _numeric(grader: Numeric, completion: str, row: DatasetRow) -> Score:
    answer = last_number(row.answer)
    if answer is None:
        return _error(f"the row's answer {_shown(row.answer)} has no number in it")
    number = last_number(completion)
    if number is None:
        return Score(0.0, reason="no number in the completion")
    if number.equals(answer, grader.tolerance):
        return Score(1.0)
    return Score(0.0, reason=f"expected {answer}, found {number}")


def _maths(grader: Maths, completion: str, row: DatasetRow) -> Score:
    from engine.rewards.maths import equivalent, extract, extract_answer  # sympy takes seconds to import

    answer = extract_answer(row.answer)
    if not answer:
        return _error(f"the row's answer {_shown(row.answer)} is no mathematical expression")
    found = extract(completion)
    if not found:
        return Score(0.0, reason="no mathematical expression in the completion")
    if equivalent(answer, found):
        return Score(1.0)
    return Score(0.0, reason=f"expected {_shown(row.answer)}, found {_shown(str(found[-1]))}")


def _regex(grader: Regex, completion: str, row: DatasetRow) -> Score:
    pattern = re.compile(grader.pattern, re.IGNORECASE if grader.ignore_case else 0)
    match = pattern.fullmatch(completion.strip()) if grader.full else pattern.search(completion)
    if match is None:
        return Score(0.0, reason="the pattern does not match")
    if grader.group_equals_answer:
        found = match[1 if pattern.groups else 0]
        if found is None or not _same(found, row.answer, grader.ignore_case, strip=True):
            return Score(0.0, reason=f"expected {_shown(row.answer)}, found {_shown(found or '')}")
    return Score(1.0)


def _json_schema(grader: JsonSchema, completion: str, row: DatasetRow) -> Score:
    """The completion is the JSON, or one Markdown code block around it, as chat models like to write; nothing else.

    References are resolved inside the schema (and to the JSON Schema drafts) only; none is ever fetched.
    """
    text = completion.strip()
    if fenced := FENCE.fullmatch(text):
        text = fenced[1]
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Score(0.0, reason=f"not JSON: {_shorten(str(error))}")
    validator = jsonschema.Draft202012Validator(grader.json_schema, registry=jsonschema_specifications.REGISTRY)
    try:
        problem = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except referencing.exceptions.Unresolvable as error:
        return _error(
            f"the schema refers to {_shown(str(error.ref))}, which is not in it; references are never fetched"
        )
    except RecursionError:
        return _error("the schema refers to itself without end, or the completion is nested too deeply")
    if problem is None:
        return Score(1.0)
    return Score(0.0, reason=f"{problem.json_path}: {_shorten(problem.message)}")


def _brevity(grader: Brevity, completion: str, row: DatasetRow) -> Score:
    room = (grader.limit - len(completion)) / (grader.limit - grader.target)
    return Score(min(max(room, 0.0), 1.0))


def _reasoning_gym(grader: ReasoningGymScore, completion: str, row: DatasetRow) -> Score:
    from engine.rewards.reasoning_gym import score  # an optional package that takes seconds to import

    return Score(min(max(score(grader, completion, row), 0.0), 1.0))


def _environment(grader: EnvironmentReward, completion: str, row: DatasetRow) -> Score:
    parts = row.metadata.get(ENVIRONMENT_PARTS) or {}
    if grader.part not in parts:
        given = f"it gave {', '.join(parts)}" if parts else "it gave none"
        return Score(0.0, reason=f"the environment gave no part {grader.part} in this episode; {given}")
    value = (parts[grader.part] - grader.low) / (grader.high - grader.low)
    return Score(min(max(value, 0.0), 1.0))


_GRADERS: dict[type, Callable[[Any, str, DatasetRow], Score]] = {
    ExactMatch: _exact_match,
    Numeric: _numeric,
    Maths: _maths,
    Regex: _regex,
    JsonSchema: _json_schema,
    Brevity: _brevity,
    ReasoningGymScore: _reasoning_gym,
    EnvironmentReward: _environment,
}


def _same(text: str, answer: str, ignore_case: bool, strip: bool) -> bool:
    if strip:
        text, answer = text.strip(), answer.strip()
    return text.casefold() == answer.casefold() if ignore_case else text == answer


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _error(reason: str) -> Score:
    return Score(0.0, reason=reason, error=True)


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def _shown(text: str) -> str:
    return repr(_shorten(text))
