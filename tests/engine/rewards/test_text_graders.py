"""Graders of text, labels, JSON paths and form, each against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rewards.graders import grade
from engine.spec import (
    DatasetRow,
    DeclarativeGrader,
    ExactMatch,
    Format,
    JsonPath,
    LabelMatch,
    LengthWindow,
    Message,
    Numeric,
    Regex,
    StringCheck,
    TextSimilarity,
    Turn,
)
from engine.types import Sample, Score


def score(grader: DeclarativeGrader, completion: str, answer: str = "", **metadata: Any) -> Score:
    row = DatasetRow(messages=[Message(role="user", content="?")], answer=answer, metadata=metadata)
    return grade(grader, Sample(row, completion))


def total(grader: DeclarativeGrader, completion: str, answer: str = "") -> float:
    result = score(grader, completion, answer)
    assert not result.error, result.reason
    return result.total


def fault(grader: DeclarativeGrader, completion: str, answer: str = "") -> str:
    result = score(grader, completion, answer)
    assert (result.total, result.error, result.error_kind) == (0, True, "grader")
    return result.reason


# --- references ------------------------------------------------------------------------------------------------------


def test_input_and_reference_come_from_anywhere_in_row_and_sample() -> None:
    grader = ExactMatch(input="{{ sample.turns[0].content }}", reference="<{{ row.metadata.gold }}>")
    row = DatasetRow(messages=[Message(role="user", content="?")], metadata={"gold": 7})
    turns = [
        Turn(role="assistant", content="<7>"),
        Turn(role="tool", content="ok"),
        Turn(role="assistant", content="8"),
    ]
    assert grade(grader, Sample(row, "8", turns)).total == 1


def test_the_completion_is_the_first_turn_of_a_single_turn() -> None:
    assert total(ExactMatch(input="{{ sample.turns[0].content }}", reference="x"), "x") == 1


def test_a_missing_value_is_an_error_that_names_it() -> None:
    assert fault(Numeric(reference="{{ row.metadata.gold }}"), "1") == "row.metadata.gold is not there"


# --- string check ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "completion", "expected"),
    [
        ("eq", "Paris", 1),
        ("eq", " Paris\n", 1),
        ("eq", "paris", 0),
        ("eq", "Paris, France", 0),
        ("ne", "Paris", 0),
        ("ne", "Rome", 1),
        ("like", "It is Paris.", 1),
        ("like", "It is paris.", 0),
        ("like", "Rome", 0),
        ("ilike", "It is PARIS.", 1),
        ("ilike", "Rome", 0),
    ],
)
def test_string_check(operation: Any, completion: str, expected: float) -> None:
    assert total(StringCheck(operation=operation), completion, "Paris") == expected


def test_an_empty_reference_is_in_everything_and_therefore_an_error() -> None:
    assert "empty" in fault(StringCheck(operation="like"), "anything", "")


# --- similarity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "completion", "answer", "expected"),
    [
        ("fuzzy", "abcd", "abcd", 1),
        ("fuzzy", "abcd", "abxd", 0.75),  # 2 * 3 shared characters of 8
        ("fuzzy", "abc", "xyz", 0),
        ("fuzzy", "", "abc", 0),
        ("rouge_1", "the cat sat", "the cat ran away", 2 * 2 / 7),  # 2 of 3 and 2 of 4: F = 2 * 2 / (3 + 4)
        ("rouge_2", "the cat sat", "the cat ran away", 2 * 1 / 5),  # bigrams: 1 of 2 and 1 of 3
        ("rouge_l", "a c b", "a b c", 2 * 2 / 6),  # longest common subsequence 2
        ("rouge_1", "cats", "cat", 1),  # stemmed
        ("cosine_words", "a b", "a c", 0.5),
        ("cosine_words", "A a b", "a a b", 1),
        ("cosine_words", "x y", "a c", 0),
        ("cosine_characters", "abcd", "abce", 0.5),  # abc, bcd and abc, bce
        ("cosine_characters", "ab", "ab", 1),
        ("bleu", "the cat sat on the mat", "the cat sat on the mat", 1),
        ("bleu", "dogs", "the cat sat on the mat", 0),
        ("chrf", "the cat", "the cat", 1),
        ("chrf", "xyz", "the cat", 0),
    ],
)
def test_similarity(metric: Any, completion: str, answer: str, expected: float) -> None:
    assert total(TextSimilarity(metric=metric), completion, answer) == pytest.approx(expected, abs=1e-6)


def test_bleu_by_hand() -> None:
    """4 words of the 5-word reference, in order: all precisions 1, brevity penalty exp(1 - 5/4)."""
    found = total(TextSimilarity(metric="bleu"), "the cat sat on", "the cat sat on it")
    assert found == pytest.approx(math.exp(1 - 5 / 4))


def test_a_threshold_makes_it_pass_or_fail() -> None:
    assert total(TextSimilarity(threshold=0.75), "abcd", "abxd") == 1
    below = score(TextSimilarity(threshold=0.76), "abcd", "abxd")
    assert (below.total, below.reason) == (0, "the similarity is 0.750, below 0.76")


@pytest.mark.parametrize("metric", ["fuzzy", "bleu", "chrf", "cosine_characters"])
def test_case_is_ignored_where_asked(metric: Any) -> None:
    assert total(TextSimilarity(metric=metric, ignore_case=True), "THE CAT SAT ON IT", "the cat sat on it") >= 0.999
    assert total(TextSimilarity(metric=metric), "THE CAT SAT ON IT", "the cat sat on it") < 0.5


def test_a_reference_a_metric_cannot_read_is_an_error() -> None:
    assert "empty" in fault(TextSimilarity(), "a", " ")
    assert "chrf" in fault(TextSimilarity(metric="rouge_l"), "日本", "日本")
    assert "no word" in fault(TextSimilarity(metric="cosine_words"), "a", "!?")
    assert total(TextSimilarity(metric="chrf"), "日本", "日本") == pytest.approx(1)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grader", "completion", "answer", "expected"),
    [
        (Numeric(relative_tolerance=0.01), "101", "100", 1),
        (Numeric(relative_tolerance=0.01), "99", "100", 1),
        (Numeric(relative_tolerance=0.01), "101.01", "100", 0),
        (Numeric(relative_tolerance=0.01), "-101", "-100", 1),
        (Numeric(relative_tolerance=0.01), "100", "-100", 0),
        (Numeric(relative_tolerance=0.5), "0.1", "0", 0),
        (Numeric(relative_tolerance=0.01, tolerance=5), "104", "100", 1),
        (Numeric(relative_tolerance=0.1), "55%", "0.5", 1),
        (Numeric(relative_tolerance=0.1), "0.56", "50%", 0),
    ],
)
def test_relative_tolerance(grader: Numeric, completion: str, answer: str, expected: float) -> None:
    assert total(grader, completion, answer) == expected


# --- regex groups ----------------------------------------------------------------------------------------------------

NAMED = r"(?P<unit>[a-z]+)=(?P<value>\S+)"


@pytest.mark.parametrize(
    ("group", "compare_as", "completion", "answer", "expected"),
    [
        ("value", "text", "m=7", "7", 1),
        ("value", "text", "m=7.0", "7", 0),
        ("value", "number", "m=7.0", "7", 1),
        ("value", "number", "m=$1,000", "1000", 1),
        ("value", "number", "m=many", "7", 0),
        ("2", "text", "m=7", "7", 1),
        ("0", "text", "m=7", "m=7", 1),
        ("", "text", "m=7", "m", 1),
        ("unit", "text", "m=7", "7", 0),
    ],
)
def test_a_group_by_name_or_number(group: str, compare_as: Any, completion: str, answer: str, expected: float) -> None:
    grader = Regex(pattern=NAMED, group_equals_answer=True, group=group, compare_as=compare_as)
    assert total(grader, completion, answer) == expected


def test_a_reference_without_a_number_is_an_error_where_numbers_are_compared() -> None:
    grader = Regex(pattern=NAMED, group_equals_answer=True, group="value", compare_as="number")
    assert "no number" in fault(grader, "m=7", "seven")


# --- labels ----------------------------------------------------------------------------------------------------------

SIZES = [{"name": "small", "synonyms": ["tiny"]}, {"name": "medium"}, {"name": "large", "synonyms": ["very big"]}]


def sizes(**options: Any) -> LabelMatch:
    return LabelMatch.model_validate({"labels": SIZES, **options})


@pytest.mark.parametrize(
    ("options", "completion", "answer", "expected"),
    [
        ({}, "It is small.", "small", 1),
        ({}, "Tiny!", "small", 1),
        ({}, "very\n big", "large", 1),
        ({}, "It is small.", "tiny", 1),
        ({}, "smaller", "small", 0),
        ({}, "not small but large", "large", 1),
        ({}, "large, not small", "large", 0),
        ({"mention": "first"}, "large, not small", "large", 1),
        ({"mention": "only"}, "large, not small", "large", 0),
        ({"mention": "only"}, "large, yes, very big", "large", 1),
        ({"ignore_case": False}, "LARGE", "large", 0),
        ({}, "no idea", "large", 0),
        ({"partial_credit": "mentioned"}, "large, not small", "large", 0.5),
        ({"partial_credit": "mentioned"}, "medium", "large", 0),
        ({"partial_credit": "ordered"}, "medium", "large", 0.5),
        ({"partial_credit": "ordered"}, "small", "large", 0),
        ({"partial_credit": "ordered"}, "small", "medium", 0),
        ({"partial_credit": "ordered"}, "huge", "medium", 0),
    ],
)
def test_label_match(options: dict[str, Any], completion: str, answer: str, expected: float) -> None:
    assert total(sizes(**options), completion, answer) == expected


def test_of_two_labels_that_overlap_the_longer_counts() -> None:
    grader = LabelMatch.model_validate({"labels": [{"name": "positive"}, {"name": "not positive"}]})
    assert total(grader, "It is not positive", "not positive") == 1
    assert total(grader, "It is not positive", "positive") == 0


def test_an_answer_that_is_no_label_is_an_error() -> None:
    assert fault(sizes(), "small", "gigantic") == "the reference 'gigantic' is none of the labels"


# --- JSON path -------------------------------------------------------------------------------------------------------

ORDER = '{"total": 12.5, "items": [{"name": "Pear", "n": 2}, {"name": "apple", "n": 3}], "paid": true, "note": null}'


@pytest.mark.parametrize(
    ("path", "operation", "reference", "more", "expected"),
    [
        ("$.total", "exists", "", {}, 1),
        ("$.gone", "exists", "", {}, 0),
        ("$.note", "exists", "", {}, 1),
        ("$.total", "eq", "12.5", {}, 1),
        ("$.total", "eq", "12.50", {}, 1),
        ("$.total", "eq", "12", {}, 0),
        ("$.gone", "eq", "12", {}, 0),
        ("$.gone", "ne", "12", {}, 0),
        ("$.total", "ne", "12", {}, 1),
        ("$.paid", "eq", "true", {}, 1),
        ("$.paid", "eq", "1", {}, 0),
        ("$.note", "eq", "null", {}, 1),
        ("$.items[0].name", "eq", "Pear", {}, 1),
        ("$.items[0].name", "eq", '"Pear"', {}, 1),
        ("$.items[0]", "eq", '{"n": 2.0, "name": "Pear"}', {}, 1),
        ("$.items[*].n", "gt", "1", {}, 1),
        ("$.items[*].n", "gt", "2", {}, 0),
        ("$.items[*].n", "gt", "2", {"values": "any"}, 1),
        ("$.items[*].n", "lt", "3", {"values": "first"}, 1),
        ("$.items[*].n", "ge", "2", {}, 1),
        ("$.items[*].n", "le", "2", {}, 0),
        ("$.items[?@.n > 2].name", "like", "app", {}, 1),
        ("$.items[?@.n > 2].name", "like", "APP", {}, 0),
        ("$.items[?@.n > 2].name", "ilike", "APP", {}, 1),
        ("$.total", "number", "12.4", {"tolerance": 0.2}, 1),
        ("$.total", "number", "12.4", {}, 0),
        ("$.paid", "number", "1", {}, 0),
    ],
)
def test_json_path(path: str, operation: Any, reference: str, more: dict[str, Any], expected: float) -> None:
    grader = JsonPath(path=path, operation=operation, reference=reference, **more)
    assert total(grader, ORDER) == expected
    assert total(grader, f"```json\n{ORDER}\n```") == expected


def test_json_path_on_texts_and_what_is_no_json() -> None:
    assert total(JsonPath(path="$", reference="[1]"), '"[1]"') == 1
    assert total(JsonPath(path="$[0]", operation="exists"), '"[1]"') == 0
    assert score(JsonPath(path="$.a"), "not JSON", "1").reason.startswith("not JSON")
    assert score(JsonPath(path="$.total", operation="ge"), ORDER, "13").reason == "expected at least 13, found 12.5"
    assert "no number" in fault(JsonPath(path="$.total", operation="lt"), ORDER, "many")


# --- length and form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "slack", "expected"), [(3, 0, 1), (5, 0, 1), (2, 0, 0), (6, 0, 0), (2, 4, 0.75), (7, 4, 0.5), (9, 4, 0)]
)
def test_length_window(words: int, slack: int, expected: float) -> None:
    grader = LengthWindow(minimum=3, maximum=5, slack=slack)
    assert total(grader, "  ein " * words) == pytest.approx(expected)
    characters = LengthWindow(minimum=3, maximum=5, slack=slack, unit="characters")
    assert total(characters, "x" * words) == pytest.approx(expected)


THINK = Format(tags=["think", "answer"])


@pytest.mark.parametrize(
    ("grader", "completion", "expected"),
    [
        (THINK, "<think>a</think><answer>b</answer>", 1),
        (THINK, "so <think>a</think> and <answer>b</answer>.", 1),
        (THINK, "<answer>b</answer><think>a</think>", 0),
        (THINK, "<think>a<answer>b</answer></think>", 0),
        (THINK, "<think>a</think>", 0),
        (THINK, "<think>a</think><answer>b</answer><answer>c</answer>", 0),
        (THINK, "</think>a<think><answer>b</answer>", 0),
        (Format(tags=["a"], nothing_outside=True), " <a>x</a>\n", 1),
        (Format(tags=["a"], nothing_outside=True), "well, <a>x</a>", 0),
        (Format(tags=["think", "answer"], partial_credit=True), "<think>a</think>", 1 / 3),
        (Format(tags=["think", "answer"], partial_credit=True), "<answer>b</answer><think>a</think>", 2 / 3),
        (Format(sections=["Plan", "Result"]), "# Plan\nx\n## Result\ny", 1),
        (Format(sections=["Plan", "Result"]), "**Plan:** x\nresult: y", 1),
        (Format(sections=["Plan", "Result"]), "Result\nx\nPlan\ny", 0),
        (Format(sections=["Plan", "Result"]), "The plan is x\nResult", 0),
        (Format(sections=["Plan"], tags=["a"], partial_credit=True), "Plan", 0.5),
    ],
)
def test_format(grader: Format, completion: str, expected: float) -> None:
    assert total(grader, completion) == pytest.approx(expected)


def test_format_says_what_is_wrong() -> None:
    assert score(THINK, "x").reason == (
        "<think>...</think> does not stand exactly once; <answer>...</answer> does not stand exactly once; "
        "the tags are not in order"
    )


GRADERS: list[DeclarativeGrader] = [
    StringCheck(operation="ilike"),
    *(TextSimilarity(metric=metric) for metric in ("fuzzy", "bleu", "chrf", "rouge_1", "rouge_l", "cosine_words")),
    TextSimilarity(metric="cosine_characters", threshold=0.5),
    Numeric(relative_tolerance=0.5),
    sizes(partial_credit="ordered"),
    JsonPath(path="$..*", operation="number"),
    JsonPath(path="$", operation="eq"),
    LengthWindow(minimum=2, maximum=3, slack=2),
    Format(tags=["a"], sections=["b"], partial_credit=True, nothing_outside=True),
]


@given(st.sampled_from(GRADERS), st.text(max_size=30), st.text(max_size=10))
def test_every_score_is_finite_and_in_range(grader: DeclarativeGrader, completion: str, answer: str) -> None:
    result = score(grader, completion, answer)
    assert math.isfinite(result.total) and 0 <= result.total <= 1
    assert not (result.error and result.total)
