"""Equality, containment and patterns."""

from __future__ import annotations

import re

from engine.rewards.graders.numeric import number_of
from engine.rewards.graders.source import GraderError, Source, shown
from engine.rewards.numbers import last_number
from engine.spec import ExactMatch, Regex, StringCheck
from engine.types import Score


def exact_match(grader: ExactMatch, source: Source) -> Score:
    reference = source.text(grader.reference)
    if _same(source.text(grader.input), reference, grader.ignore_case, grader.strip):
        return Score(1.0)
    return Score(0.0, reason=f"expected {shown(reference)}")


def string_check(grader: StringCheck, source: Source) -> Score:
    return check_text(grader.operation, source.text(grader.input), source.text(grader.reference))


def check_text(operation: str, text: str, reference: str) -> Score:
    """``eq``, ``ne``, ``like`` or ``ilike``, white space around both ignored."""
    text, reference = text.strip(), reference.strip()
    if operation == "eq":
        return Score(1.0) if text == reference else Score(0.0, reason=f"expected {shown(reference)}")
    if operation == "ne":
        return Score(0.0, reason=f"it is {shown(reference)}") if text == reference else Score(1.0)
    if not reference:
        raise GraderError("the reference is empty, and an empty text is found in everything")
    found = reference.casefold() in text.casefold() if operation == "ilike" else reference in text
    return Score(1.0) if found else Score(0.0, reason=f"{shown(reference)} is not in it")


def regex(grader: Regex, source: Source) -> Score:
    text = source.text(grader.input)
    pattern = re.compile(grader.pattern, re.IGNORECASE if grader.ignore_case else 0)
    match = pattern.fullmatch(text.strip()) if grader.full else pattern.search(text)
    if match is None:
        return Score(0.0, reason="the pattern does not match")
    if not grader.group_equals_answer:
        return Score(1.0)
    found = _group(grader, match)
    reference = source.text(grader.reference)
    if _equals(grader, found, reference):
        return Score(1.0)
    return Score(0.0, reason=f"expected {shown(reference)}, found {shown(found or '')}")


def _group(grader: Regex, match: re.Match[str]) -> str | None:
    if not grader.group:
        return match[1 if match.re.groups else 0]
    return match[grader.group if grader.group in match.re.groupindex else int(grader.group)]


def _equals(grader: Regex, found: str | None, reference: str) -> bool:
    if grader.compare_as == "text":
        return found is not None and _same(found, reference, grader.ignore_case, strip=True)
    answer = number_of(reference)
    number = last_number(found or "")
    return number is not None and number.equals(answer, grader.tolerance)


def _same(text: str, answer: str, ignore_case: bool, strip: bool) -> bool:
    if strip:
        text, answer = text.strip(), answer.strip()
    return text.casefold() == answer.casefold() if ignore_case else text == answer
