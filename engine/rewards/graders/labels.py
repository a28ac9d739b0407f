"""Which label a text decides for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from engine.rewards.graders.source import GraderError, Source, shown
from engine.spec import LabelMatch
from engine.types import Score

MENTIONED_CREDIT = 0.5

Names = tuple[tuple[str, ...], ...]
"""What each label may be called."""


def label_match(grader: LabelMatch, source: Source) -> Score:
    names = tuple((label.name, *label.synonyms) for label in grader.labels)
    reference = source.text(grader.reference)
    match = _pattern(names, grader.ignore_case)[0].fullmatch(reference.strip())
    if match is None:
        raise GraderError(f"the reference {shown(reference)} is none of the labels")
    right = _pattern(names, grader.ignore_case)[1][_index(match)]
    mentions = find_labels(names, source.text(grader.input), ignore_case=grader.ignore_case)
    if not mentions:
        return Score(0.0, reason="none of the labels is in it")
    decided: int | None = mentions[0] if grader.mention == "first" else mentions[-1]
    if grader.mention == "only" and len(set(mentions)) > 1:
        decided = None
    if decided == right:
        return Score(1.0)
    expected = grader.labels[right].name
    found = "several labels" if decided is None else repr(grader.labels[decided].name)
    return Score(_credit(grader, right, decided, mentions), reason=f"expected {expected!r}, found {found}")


def find_labels(names: Names, text: str, *, ignore_case: bool) -> list[int]:
    """Index of the label of each mention, in order."""
    pattern, labels = _pattern(names, ignore_case)
    return [labels[_index(match)] for match in pattern.finditer(text)]


def _credit(grader: LabelMatch, right: int, decided: int | None, mentions: Sequence[int]) -> float:
    if grader.partial_credit == "mentioned":
        return MENTIONED_CREDIT if right in mentions else 0.0
    if grader.partial_credit == "ordered" and decided is not None:
        farthest = max(right, len(grader.labels) - 1 - right)
        return 1 - abs(decided - right) / farthest
    return 0.0


@lru_cache(maxsize=64)
def _pattern(names: Names, ignore_case: bool) -> tuple[re.Pattern[str], list[int]]:
    """One alternative for each name, the longest first, and the label that each stands for."""
    flat = sorted(((name, label) for label, all_of in enumerate(names) for name in all_of), key=lambda x: -len(x[0]))
    alternatives = "|".join(f"({_literal(name)})" for name, _ in flat)
    flags = re.IGNORECASE if ignore_case else 0
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", flags), [label for _, label in flat]


def _literal(name: str) -> str:
    return r"\s+".join(re.escape(word) for word in name.split())


def _index(match: re.Match[str]) -> int:
    assert match.lastindex is not None
    return match.lastindex - 1
