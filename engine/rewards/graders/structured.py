"""Completions that are JSON."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

import jsonpath
import jsonschema
import jsonschema_specifications
import referencing.exceptions

from engine.rewards.graders.numeric import number_of
from engine.rewards.graders.source import GraderError, Source, shorten, shown
from engine.rewards.graders.text import check_text
from engine.rewards.numbers import Number, last_number
from engine.spec import JsonPath, JsonSchema
from engine.types import Score

FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
ORDER = {"lt": "less than", "le": "at most", "gt": "greater than", "ge": "at least"}


class NotJson(Exception):
    """The text is not JSON."""


def read_json(text: str) -> Any:
    """The value of a text that is JSON, or one Markdown code block around it, as chat models like to write; nothing
    else. Raises NotJson."""
    text = text.strip()
    if fenced := FENCE.fullmatch(text):
        text = fenced[1]
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {shorten(str(error))}") from None


def json_schema(grader: JsonSchema, source: Source) -> Score:
    """References are resolved inside the schema (and to the JSON Schema drafts) only; none is ever fetched."""
    try:
        value = read_json(source.text(grader.input))
    except NotJson as error:
        return Score(0.0, reason=str(error))
    validator = jsonschema.Draft202012Validator(grader.json_schema, registry=jsonschema_specifications.REGISTRY)
    try:
        problem = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except referencing.exceptions.Unresolvable as error:
        raise GraderError(
            f"the schema refers to {shown(str(error.ref))}, which is not in it; references are never fetched"
        ) from None
    except RecursionError:
        raise GraderError("the schema refers to itself without end, or the completion is nested too deeply") from None
    if problem is None:
        return Score(1.0)
    return Score(0.0, reason=f"{problem.json_path}: {shorten(problem.message)}")


def json_path(grader: JsonPath, source: Source) -> Score:
    reference = source.text(grader.reference) if grader.operation != "exists" else ""
    try:
        value = read_json(source.text(grader.input))
    except NotJson as error:
        return Score(0.0, reason=str(error))
    document = json.dumps(value) if isinstance(value, str) else value  # the library reads a text as a document
    found = _path(grader.path).findall(document)
    if not found:
        return Score(0.0, reason=f"{grader.path} picks nothing")
    if grader.operation == "exists":
        return Score(1.0)
    scores = [_compare(grader, one, reference) for one in (found[:1] if grader.values == "first" else found)]
    passed = any(score.total for score in scores) if grader.values == "any" else all(score.total for score in scores)
    if passed:
        return Score(1.0)
    return next(score for score in scores if not score.total)


def _compare(grader: JsonPath, value: Any, reference: str) -> Score:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if grader.operation in {"like", "ilike"}:
        return check_text(grader.operation, text, reference)
    if grader.operation in {"eq", "ne"}:
        equal = text.strip() == reference.strip() or _same(value, _reference_value(reference))
        if equal == (grader.operation == "eq"):
            return Score(1.0)
        return Score(
            0.0, reason=f"expected {'' if not equal else 'other than '}{shown(reference)}, found {shown(text)}"
        )
    answer, number = number_of(reference), _number(value)
    if number is None:
        return Score(0.0, reason=f"{shown(text)} is no number")
    if grader.operation == "number":
        passed, wanted = number.equals(answer, grader.tolerance), ""
    else:
        passed, wanted = _in_order(grader.operation, number.value, answer.value), f"{ORDER[grader.operation]} "
    return Score(1.0) if passed else Score(0.0, reason=f"expected {wanted}{answer}, found {number}")


def _in_order(operation: str, number: Decimal, answer: Decimal) -> bool:
    match operation:
        case "lt":
            return number < answer
        case "le":
            return number <= answer
        case "gt":
            return number > answer
    return number >= answer


def _reference_value(reference: str) -> Any:
    try:
        return read_json(reference)
    except NotJson:
        return reference.strip()


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _number(value: Any) -> Number | None:
    """A JSON number, or the last number of a text."""
    if isinstance(value, str):
        return last_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = Decimal(str(value))
    return Number(number) if number.is_finite() else None


@lru_cache(maxsize=64)
def _path(path: str) -> Any:
    return jsonpath.compile(path, strict=True)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
