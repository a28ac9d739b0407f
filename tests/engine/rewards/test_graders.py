"""The built-in graders, each against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rewards.graders import grade as grade_sample
from engine.spec import (
    Brevity,
    DatasetRow,
    DeclarativeGrader,
    ExactMatch,
    JsonSchema,
    Maths,
    Message,
    Numeric,
    Regex,
)
from engine.types import Sample, Score


def grade(grader: DeclarativeGrader, completion: str, answer: str = "") -> Score:
    row = DatasetRow(messages=[Message(role="user", content="?")], answer=answer)
    return grade_sample(grader, Sample(row, completion))


def total(grader: DeclarativeGrader, completion: str, answer: str = "") -> float:
    score = grade(grader, completion, answer)
    assert not score.error, score.reason
    return score.total


# --- exact match -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grader", "completion", "answer", "expected"),
    [
        (ExactMatch(), "Paris", "Paris", 1),
        (ExactMatch(), " Paris\n", "Paris", 1),
        (ExactMatch(strip=False), " Paris", "Paris", 0),
        (ExactMatch(), "paris", "Paris", 0),
        (ExactMatch(ignore_case=True), "STRASSE", "straße", 1),
        (ExactMatch(), "Paris.", "Paris", 0),
        (ExactMatch(), "", "", 1),
    ],
)
def test_exact_match(grader: ExactMatch, completion: str, answer: str, expected: float) -> None:
    assert total(grader, completion, answer) == expected


# --- numeric ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("She pays 3 * $6 = $18.", "18", 1),
        ("It is 18 dollars, not 19", "18", 0),
        ("1,000", "1000", 1),
        ("0.75", "3/4", 1),
        ("50%", "0.5", 1),
        ("-3", "3", 0),
        ("18", "#### 18", 1),
    ],
)
def test_numeric(completion: str, answer: str, expected: float) -> None:
    assert total(Numeric(), completion, answer) == expected


def test_numeric_tolerance() -> None:
    assert total(Numeric(tolerance=0.01), "3.14", "3.1415926") == 1
    assert total(Numeric(), "3.14", "3.1415926") == 0


def test_numeric_says_what_it_found() -> None:
    assert grade(Numeric(), "It is 1,900.", "18").reason == "expected 18, found 1900"
    assert grade(Numeric(), "dunno", "18").reason == "no number in the completion"


def test_an_answer_without_a_number_is_an_error_of_the_dataset() -> None:
    score = grade(Numeric(), "18", "eighteen")
    assert score.error and score.total == 0
    assert score.reason == "the reference 'eighteen' has no number in it"


# --- maths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        (r"so \boxed{42}", "42"),
        ("It is $42$", r"\boxed{42}"),
        (r"$\frac{1}{2}$", "1/2"),
        (r"\frac{1}{2}", "0.5"),
        ("0.5", r"\frac{1}{2}"),
        (r"$\frac{2}{4}$", r"$\frac{1}{2}$"),
        ("x^2 + 1", "1 + x^2"),
        (r"we get $(x+1)^2$", "x^2+2x+1"),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}"),
        (r"$x = 5$", "5"),
        ("1,234", "1234"),
        ("18 dollars", "$18"),
        (r"$\{2, 1\}$", r"\{1, 2\}"),
        (r"$1\frac{3}{4}$", "7/4"),
        (r"\[ \pi r^2 \]", r"\pi r^2"),
        (r"$\sin^2 x + \cos^2 x$", "1"),
        (r"First $3$, then \boxed{4}", "4"),
        ("<think>3 or 4</think><answer>4</answer>", "4"),
        ("<think>4+4</think><answer>8</answer>", "8"),
        ("<answer>x^2+1</answer>", "1 + x^2"),
    ],
)
def test_maths_equivalent(completion: str, answer: str) -> None:
    assert total(Maths(), completion, answer) == 1


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("41", "42"),
        (r"\boxed{41}, and not 42", "42"),
        ("x^2 + 1", "1"),
        ("x^2 + 1", "x^2 - 1"),
        (r"$\frac{1}{3}$", "0.33"),
        ("no idea", "42"),
        ("", "42"),
        ("-3", "3"),
        (r"$(1, 2)$", r"$(2, 1)$"),
        ("<think>4</think><answer>3</answer>", "4"),
    ],
)
def test_maths_not_equivalent(completion: str, answer: str) -> None:
    assert total(Maths(), completion, answer) == 0


def test_an_answer_that_is_no_formula_is_an_error_of_the_dataset() -> None:
    score = grade(Maths(), "42", "no such thing")
    assert score.error and "is no mathematical expression" in score.reason


# --- regex -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grader", "completion", "answer", "expected"),
    [
        (Regex(pattern=r"<answer>\d+</answer>"), "so <answer>12</answer>.", "", 1),
        (Regex(pattern=r"<answer>\d+</answer>"), "so 12", "", 0),
        (Regex(pattern=r"\d+", full=True), " 12\n", "", 1),
        (Regex(pattern=r"\d+", full=True), "12 apples", "", 0),
        (Regex(pattern="yes"), "YES", "", 0),
        (Regex(pattern="yes", ignore_case=True), "YES", "", 1),
        (Regex(pattern=r"<a>(.*?)</a>", group_equals_answer=True), "<a> 12 </a>", "12", 1),
        (Regex(pattern=r"<a>(.*?)</a>", group_equals_answer=True), "<a>13</a>", "12", 0),
        (Regex(pattern=r"<a>(.*?)</a>", group_equals_answer=True), "12", "12", 0),
        (Regex(pattern=r"\d+", group_equals_answer=True), "it is 12", "12", 1),
        (Regex(pattern=r"x|(y)", group_equals_answer=True), "x", "x", 0),
        (Regex(pattern=r"(yes|no)", group_equals_answer=True, ignore_case=True), "NO", "no", 1),
        (Regex(pattern=r"(yes|no)", group_equals_answer=True), "no", "No", 0),
    ],
)
def test_regex(grader: Regex, completion: str, answer: str, expected: float) -> None:
    assert total(grader, completion, answer) == expected


# --- JSON schema -----------------------------------------------------------------------------------------------------

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ('{"name": "Ada", "age": 36}', 1),
        (' \n{"name": "Ada"}\n', 1),
        ('```json\n{"name": "Ada"}\n```', 1),
        ('```\n{"name": "Ada"}\n```', 1),
        ('Here: ```json\n{"name": "Ada"}\n```', 0),
        ('{"name": "Ada"} done', 0),
        ('{"age": 36}', 0),
        ('{"name": "Ada", "age": -1}', 0),
        ('{"name": "Ada", "town": "London"}', 0),
        ("[]", 0),
        ("", 0),
        ("NaN", 0),
        ("[" * 100_000, 0),
        ("9" * 10_000, 0),
    ],
)
def test_json_schema(completion: str, expected: float) -> None:
    assert total(JsonSchema(json_schema=PERSON), completion) == expected


def test_json_schema_says_where_it_fails() -> None:
    reason = grade(JsonSchema(json_schema=PERSON), '{"name": 3}').reason
    assert reason == "$.name: 3 is not of type 'string'"


def test_references_inside_the_schema_work() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}
    assert total(JsonSchema(json_schema=schema), "[1, 2]") == 1
    assert total(JsonSchema(json_schema=schema), '[1, "2"]') == 0


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/schema.json", "file:///etc/passwd", "#/$defs/gone"])
def test_references_to_elsewhere_are_an_error_and_never_fetched(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was fetched")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    score = grade(JsonSchema(json_schema={"$ref": reference}), "{}")
    assert score.error and "references are never fetched" in score.reason


def test_a_schema_that_refers_to_itself_is_an_error() -> None:
    assert grade(JsonSchema(json_schema={"$ref": "#"}), "{}").error


# --- brevity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "expected"), [(0, 1), (10, 1), (15, 0.75), (20, 0.5), (30, 0), (99, 0)])
def test_brevity(length: int, expected: float) -> None:
    assert total(Brevity(target=10, limit=30), "x" * length) == pytest.approx(expected)


GRADERS: list[DeclarativeGrader] = [
    ExactMatch(),
    Numeric(),
    Regex(pattern="a+", group_equals_answer=True),
    JsonSchema(json_schema=PERSON),
    Brevity(target=1, limit=2),
]


@given(st.sampled_from(GRADERS), st.text(max_size=30), st.text(max_size=10))
def test_every_score_is_finite_and_in_range(grader: DeclarativeGrader, completion: str, answer: str) -> None:
    score = grade(grader, completion, answer)
    assert math.isfinite(score.total) and 0 <= score.total <= 1
    assert not (score.error and score.total)
