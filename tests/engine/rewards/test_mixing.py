"""From the leaves' scores to the whole's."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rewards.mixing import check, combine
from engine.spec import Brevity, Maths, Mix, MixPart, SimpleGrader
from engine.types import Score


def mix(formula: str | None = None, weights: tuple[float, float] = (3, 1), **more: Any) -> Mix:
    graders: dict[str, SimpleGrader] = {"right": Maths(), "short": Brevity(target=10, limit=30)}
    parts = [
        MixPart(name=name, weight=weight, grader=grader)
        for (name, grader), weight in zip(graders.items(), weights, strict=True)
    ]
    return Mix(parts=parts, formula=formula, **more)


def test_a_single_grader_is_its_own_score() -> None:
    score = Score(0.5, {"a": 2.0}, "why", seconds=0.1, console="hi")
    assert combine(Maths(), [score]) == score


def test_a_mix_is_the_weighted_mean_with_named_parts() -> None:
    score = combine(mix(), [Score(1.0, seconds=0.25), Score(0.5, seconds=0.5)])
    assert score == Score(0.875, {"right": 1.0, "short": 0.5}, seconds=0.75)


def test_weights_without_exact_sums_stay_in_range() -> None:
    parts = [MixPart(name=f"p{i}", weight=0.1, grader=Maths()) for i in range(7)]
    assert combine(Mix(parts=parts), [Score(1.0)] * 7).total <= 1


def test_a_mix_names_the_part_a_reason_comes_from() -> None:
    one, other = Score(0.0, reason="expected 42", console="x", details="y"), Score(0.0, reason="too long", console="z")
    score = combine(mix(), [one, other])
    assert score.reason == "right: expected 42; short: too long"
    assert (score.console, score.details) == ("right: x\n\nshort: z", "right: y")


def test_a_part_that_fails_makes_the_mix_an_error_of_its_kind() -> None:
    failed = Score(0.0, reason="timed out", error=True, error_kind="timed_out", details="line 3")
    score = combine(mix(), [failed, Score(1.0)])
    assert (score.total, score.error, score.error_kind) == (0, True, "timed_out")
    assert (score.reason, score.details) == ("right: timed out", "right: line 3")
    assert score.parts == {"right": 0.0, "short": 1.0}


def test_a_reason_that_parts_share_is_said_once() -> None:
    failed = Score(0.0, reason="timed out", error=True, error_kind="timed_out")
    assert combine(mix(), [failed, failed]).reason == "right, short: timed out"


def test_texts_stay_short_however_many_parts_there_are() -> None:
    parts = [MixPart(name=f"p{i}", grader=Maths()) for i in range(16)]
    scores = [Score(0.0, reason=f"{i}" * 2000, details="d" * 8000, console="c" * 8000) for i in range(16)]
    score = combine(Mix(parts=parts), scores)
    assert (len(score.reason), len(score.details), len(score.console)) == (2000, 8192, 8192)


def test_parts_of_parts_keep_their_place() -> None:
    score = combine(mix(), [Score(1.0, {"steps": 7.0}), Score(0.0)])
    assert score.parts == {"right_steps": 7.0, "right": 1.0, "short": 0.0}


@pytest.mark.parametrize(
    ("formula", "right", "short", "expected"),
    [
        ("right * (0.8 + 0.2 * short)", 1.0, 0.5, 0.9),
        ("right if right < 1 else short", 1.0, 0.25, 0.25),
        ("right - 0.5 * (short < 0.5)", 1.0, 0.25, 0.5),
        ("2 * right", 1.0, 0.0, 1.0),  # clipped
        ("right - 2", 1.0, 0.0, 0.0),  # clipped
    ],
)
def test_a_formula_takes_the_place_of_the_weights(formula: str, right: float, short: float, expected: float) -> None:
    score = combine(mix(formula), [Score(right), Score(short)])
    assert score.total == pytest.approx(expected)
    assert score.parts == {"right": right, "short": short} and not score.error


@pytest.mark.parametrize(
    ("formula", "more", "kind", "reason"),
    [
        (
            "2 * right",
            {"clip": False},
            "out_of_range",
            "the formula's result 2 is not in 0..1 where right is 1, short is 0",
        ),
        ("right / short", {}, "not_finite", "the formula divides by zero where right is 1, short is 0"),
        (
            "1e300 * 1e300 * right",
            {},
            "not_finite",
            "the formula's result is not a finite number where right is 1, short is 0",
        ),
    ],
)
def test_a_formula_that_gives_no_score_is_an_error(formula: str, more: dict, kind: str, reason: str) -> None:
    score = combine(mix(formula, **more), [Score(1.0), Score(0.0)])
    assert (score.total, score.error, score.error_kind, score.reason) == (0, True, kind, reason)


@pytest.mark.parametrize(
    ("score", "kind"),
    [
        (Score(math.nan), "not_finite"),
        (Score(math.inf), "not_finite"),
        (Score(0.5, {"a": math.nan, "b": 1.0}), "not_finite"),
        (Score(1.01), "out_of_range"),
        (Score(-0.01), "out_of_range"),
    ],
)
def test_a_score_that_is_none_becomes_an_error(score: Score, kind: str) -> None:
    checked = check(score)
    assert (checked.total, checked.error, checked.error_kind) == (0, True, kind)
    assert all(math.isfinite(value) for value in checked.parts.values())


def test_an_error_scores_nothing() -> None:
    lying = Score(1.0, reason="broke", error=True, error_kind="killed")
    assert check(lying) == dataclasses.replace(lying, total=0.0)


@given(st.lists(st.floats(), min_size=2, max_size=2), st.sampled_from([None, "right / short", "right - short * 9"]))
def test_whatever_goes_in_a_finite_score_in_range_comes_out(totals: list[float], formula: str | None) -> None:
    score = combine(mix(formula), [Score(total) for total in totals])
    assert math.isfinite(score.total) and 0 <= score.total <= 1
    assert all(math.isfinite(value) for value in score.parts.values())
