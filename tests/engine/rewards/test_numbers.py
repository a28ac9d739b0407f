"""Numbers in prose."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rewards.numbers import last_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        ("3 apples and 4 pears make 7 fruits", "7"),
        ("#### 18", "18"),
        ("**42**", "42"),
        ("_42_", "42"),
        ("答案是42。", "42"),
        ("007", "7"),
        # sign
        ("-5", "-5"),
        ("x = −5", "-5"),
        ("a=-3", "-3"),
        ("(-3)", "-3"),
        ("+7", "7"),
        ("10-5", "5"),
        ("3–5", "5"),
        ("f(x)-2", "2"),
        # decimals
        ("3.14", "3.14"),
        ("It costs 3.50.", "3.5"),
        (".5", "0.5"),
        ("No.5", "5"),
        ("wait...5", "5"),
        ("version 1.2.3", "1.2"),
        # thousands
        ("1,234", "1234"),
        ("1,234,567.89", "1234567.89"),
        ("99,999,999.", "99999999"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        ("1\u202f234\u202f567", "1234567"),
        ("1,2,3", "3"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        # currency and units
        ("$5", "5"),
        ("$1,234.50 in all", "1234.5"),
        (r"\$12", "12"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("€30", "30"),
        ("5kg", "5"),
        ("60 km/h", "60"),
        ("the 42nd", "42"),
        # powers of ten
        ("1.5e3", "1500"),
        ("1.5E-3", "0.0015"),
        ("1.5 × 10^3", "1500"),
        (r"1.5 \times 10^{-3}", "0.0015"),
        ("2 x 10^4", "20000"),
        ("2*10**4", "20000"),
        # fractions
        ("3/4", "0.75"),
        ("-3/4", "-0.75"),
        ("1 3/4", "1.75"),
        ("-1 3/4", "-1.75"),
        (r"\frac{3}{4}", "0.75"),
        (r"\boxed{-\frac{3}{4}}", "-0.75"),
        (r"1\frac{1}{2}", "1.5"),
        (r"\dfrac12", "0.5"),
        ("1.5/2", "0.75"),
        ("48/2 = 24", "24"),
        ("on 3/4/2024", "2024"),
        # not numbers
        ("5 m^2", "5"),
        ("5 m2 of H2O", "5"),
        ("x_1 is 7", "7"),
        ("7 x_{1}", "7"),
        (r"\boxed{42}", "42"),
    ],
)
def test_the_last_number_of_a_text(text: str, value: str) -> None:
    number = last_number(text)
    assert number is not None
    assert number.value == Decimal(value)
    assert not number.percent


@pytest.mark.parametrize("text", ["", "no idea", "three", "H2O", "m^2", "x_{1}", "5/0", "-", "$", "²"])
def test_texts_without_a_number(text: str) -> None:
    assert last_number(text) is None


@pytest.mark.parametrize("text", ["50%", "50 %", r"50\%", "$50%"])
def test_percent_is_noted(text: str) -> None:
    number = last_number(text)
    assert number is not None
    assert (number.value, number.percent) == (50, True)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("50%", "50", True),
        ("50%", "0.5", True),
        ("0.5", "50%", True),
        ("50%", "50%", True),
        ("50%", "0.5%", False),
        ("50%", "5", False),
        ("0.333333", "1/3", True),
        ("0.33", "1/3", False),
        ("9007199254740993", "9007199254740992", False),  # equal as floating-point numbers
        ("12345678901234567890123456789012345", "12345678901234567890123456789012346", False),
        ("0.1", "1/10", True),
        ("1e999999", "1", False),
        ("-0", "0", True),
    ],
)
def test_equality_within_a_millionth(one: str, other: str, equal: bool) -> None:
    a, b = last_number(one), last_number(other)
    assert a is not None and b is not None
    assert a.equals(b, 1e-6) is equal
    assert b.equals(a, 1e-6) is equal


def test_the_tolerance_is_absolute_and_inclusive() -> None:
    a, b = last_number("100.5"), last_number("100")
    assert a is not None and b is not None
    assert a.equals(b, 0.5)
    assert not a.equals(b, 0.4999)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**12), max_value=10**12))
def test_any_decimal_is_read_back_in_every_notation(value: Decimal) -> None:
    for text in (f"{value:f}", f"{value:,f}", f"so x = {value:,f}.", f"\\boxed{{{value:f}}}", f"{value:e}"):
        number = last_number(text)
        assert number is not None
        assert number.value == value, text


@given(st.text(alphabet="0123456789.,-+/$%^_{}\\ eExfrac*\u00a0", max_size=60))
def test_no_text_raises(text: str) -> None:
    number = last_number(text)
    assert number is None or (number.value.is_finite() and str(number))


@pytest.mark.parametrize("unit", ["1", "1,", "1 ", "1/", ".1", "111,", "9e", "-$", "{,}", "\\frac{1}{", "1e9", "_1"])
def test_a_megabyte_is_read_without_catching_fire(unit: str) -> None:
    last_number(unit * (1_000_000 // len(unit)))
