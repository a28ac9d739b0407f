"""Numbers and formulas."""

from __future__ import annotations

from engine.rewards.graders.source import GraderError, Source, shown
from engine.rewards.numbers import Number, last_number
from engine.spec import Maths, Numeric
from engine.types import Score


def numeric(grader: Numeric, source: Source) -> Score:
    answer = number_of(source.text(grader.reference))
    number = last_number(source.text(grader.input))
    if number is None:
        return Score(0.0, reason="no number in the completion")
    if number.equals(answer, grader.tolerance, grader.relative_tolerance):
        return Score(1.0)
    return Score(0.0, reason=f"expected {answer}, found {number}")


def maths(grader: Maths, source: Source) -> Score:
    from engine.rewards.maths import equivalent, extract, extract_answer  # sympy takes seconds to import

    reference = source.text(grader.reference)
    answer = extract_answer(reference)
    if not answer:
        raise GraderError(f"the reference {shown(reference)} is no mathematical expression")
    found = extract(source.text(grader.input))
    if not found:
        return Score(0.0, reason="no mathematical expression in the completion")
    if equivalent(answer, found):
        return Score(1.0)
    return Score(0.0, reason=f"expected {shown(reference)}, found {shown(str(found[-1]))}")


def number_of(reference: str) -> Number:
    """The reference's last number. Raises GraderError where it has none."""
    number = last_number(reference)
    if number is None:
        raise GraderError(f"the reference {shown(reference)} has no number in it")
    return number
