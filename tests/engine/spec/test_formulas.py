"""Arithmetic over named scores."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.formulas import check_formula, evaluate

NAMES = {"a": 0.5, "b": 0.25, "c": 1.0}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("a", 0.5),
        ("a + b * 2 - c / 4", 0.75),
        ("-a + +c", 0.5),
        ("(a + b) / 3", 0.25),
        ("min(a, b, c) + max(a, b)", 0.75),
        ("abs(b - c)", 0.75),
        ("clip(a * 4)", 1.0),
        ("clip(0 - a)", 0.0),
        ("clip(a, 0.6)", 0.6),
        ("clip(c, 0, 0.1)", 0.1),
        ("a if c > 0.9 else b", 0.5),
        ("a if c < 0.9 else b", 0.25),
        ("a if b < a <= c else 0", 0.5),
        ("c * (a == 0.5)", 1.0),
        ("a != 0.5", 0.0),
        ("a > 0.4 and b > 0.4", 0.0),
        ("a > 0.4 or b > 0.4", 1.0),
        ("not a", 0.0),
        ("  a\n", 0.5),
        ("1e-1 + 2", 2.1),
    ],
)
def test_a_formula_has_the_value_python_would_give_it(formula: str, value: float) -> None:
    check_formula(formula, NAMES)
    assert evaluate(formula, NAMES) == pytest.approx(value)


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("", "cannot be read"),
        ("a +", "cannot be read"),
        ("a; b", "cannot be read"),
        ("a = b", "cannot be read"),
        ("d", "names 'd', which is no part; the parts are a, b, c"),
        ("a ** 2", "may not use pow"),
        ("a // 2", "may not use floordiv"),
        ("a % 2", "may not use mod"),
        ("a << 2", "may not use lshift"),
        ("~a", "may not use invert"),
        ("a is b", "may compare with"),
        ("a in (b, c)", "may compare with"),
        ("'a'", "numbers only"),
        ("True", "numbers only"),
        ("1j", "numbers only"),
        ("1e999", "numbers only"),
        ("9" * 400, "numbers only"),
        ("a.real", "may not have attribute"),
        ("a[0]", "may not have subscript"),
        ("[a]", "may not have list"),
        ("lambda: 1", "may not have lambda"),
        ("[x for x in a]", "may not have listcomp"),
        ("(a := 1)", "may not have namedexpr"),
        ("f'{a}'", "may not have joinedstr"),
        ("print(a)", "may call min, max, abs, clip only"),
        ("__import__('os')", "may call min, max, abs, clip only"),
        ("a.__class__()", "may call min, max, abs, clip only"),
        ("min(a, b, key=c)", "may call min, max, abs, clip only"),
        ("min(*a, b)", "may not have starred"),
        ("min(a)", "min takes 2 to 16 values, not 1"),
        ("abs(a, b)", "abs takes 1 values, not 2"),
        ("-" * 200 + "a", "nested more than 50 deep"),
        ("(" * 400 + "a" + ")" * 400, "cannot be read"),
        ("a" + "+a" * 600, "longer than 1000 characters"),
        ("min", "names 'min', which is no part"),
        ("a\x00", "cannot be read"),
    ],
)
def test_anything_else_is_refused(formula: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        check_formula(formula, NAMES)
    assert says in str(error.value)


def test_only_division_by_zero_fails() -> None:
    check_formula("a / (c - 1)", NAMES)
    with pytest.raises(ZeroDivisionError):
        evaluate("a / (c - 1)", NAMES)


@given(st.text(alphabet="abc012.+-*/() <>=minaxbsclp,ifelsandort", max_size=30))
def test_a_checked_formula_gives_a_number_or_divides_by_zero(formula: str) -> None:
    try:
        check_formula(formula, NAMES)
    except ValueError:
        return
    with contextlib.suppress(ZeroDivisionError):
        assert isinstance(evaluate(formula, NAMES), float | int)


def test_a_result_may_be_infinite_and_is_left_to_the_caller() -> None:
    formula = "1e300 * 1e300 * a"
    check_formula(formula, NAMES)
    assert math.isinf(evaluate(formula, NAMES))
