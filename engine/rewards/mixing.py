"""From the scores of a reward's leaf graders to the score of the whole.

Invariant: what comes out is finite and in [0, 1], whatever goes in; a leaf that failed makes the whole an error, for a
mean without it is another reward. Texts are shortened, however many leaves there are.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from engine.spec import Grader, Mix
from engine.spec.formulas import evaluate
from engine.types import ErrorKind, Score

MAX_REASON = 2000
MAX_DETAILS = 8192
MAX_CONSOLE = 8192


def combine(grader: Grader, scores: Sequence[Score]) -> Score:
    """The score of a grader, given those of its leaves in the order of ``leaf_graders``."""
    checked = [check(score) for score in scores]
    if not isinstance(grader, Mix):
        return checked[0]
    return _mix(grader, {part.name: score for part, score in zip(grader.parts, checked, strict=True)})


def check(score: Score) -> Score:
    """The score, or an error in its place where it is not finite or out of range."""
    if score.error:
        return score if score.total == 0 else dataclasses.replace(score, total=0.0)
    if not all(math.isfinite(value) for value in [score.total, *score.parts.values()]):
        parts = {name: value for name, value in score.parts.items() if math.isfinite(value)}
        return _failed(dataclasses.replace(score, parts=parts), "not_finite", "the score is not a finite number")
    if not 0 <= score.total <= 1:
        return _failed(score, "out_of_range", f"the score {score.total:g} is not in 0..1")
    return score


def _mix(grader: Mix, scores: Mapping[str, Score]) -> Score:
    parts = {f"{name}_{inner}": value for name, score in scores.items() for inner, value in score.parts.items()}
    parts |= {name: score.total for name, score in scores.items()}  # a part's own name wins
    mixed = Score(
        0.0,
        parts,
        _reasons(scores)[:MAX_REASON],
        seconds=sum(score.seconds for score in scores.values()),
        details=_joined({name: score.details for name, score in scores.items()})[:MAX_DETAILS],
        console=_joined({name: score.console for name, score in scores.items()})[:MAX_CONSOLE],
        judge_tokens=sum(score.judge_tokens for score in scores.values()),
    )
    failed = next((score for score in scores.values() if score.error), None)
    if failed is not None:
        return dataclasses.replace(mixed, error=True, error_kind=failed.error_kind)
    totals = {name: score.total for name, score in scores.items()}
    if grader.formula is not None:
        return _by_formula(grader, grader.formula, totals, mixed)
    weight = sum(part.weight for part in grader.parts)
    total = sum(part.weight * totals[part.name] for part in grader.parts) / weight
    return dataclasses.replace(mixed, total=min(max(total, 0.0), 1.0))


def _by_formula(grader: Mix, formula: str, totals: Mapping[str, float], mixed: Score) -> Score:
    try:
        total = evaluate(formula, totals)
    except ZeroDivisionError:
        return _failed(mixed, "not_finite", f"the formula divides by zero where {_shown(totals)}")
    if not math.isfinite(total):
        return _failed(mixed, "not_finite", f"the formula's result is not a finite number where {_shown(totals)}")
    if grader.clip:
        total = min(max(total, 0.0), 1.0)
    elif not 0 <= total <= 1:
        return _failed(mixed, "out_of_range", f"the formula's result {total:g} is not in 0..1 where {_shown(totals)}")
    return dataclasses.replace(mixed, total=total)


def _failed(score: Score, kind: ErrorKind, reason: str) -> Score:
    reason = "; ".join(text for text in (reason, score.reason) if text)
    return dataclasses.replace(score, total=0.0, reason=reason, error=True, error_kind=kind)


def _reasons(scores: Mapping[str, Score]) -> str:
    """Each reason with the parts that have it: parts graded in one call may fail together."""
    names = defaultdict(list)
    for name, score in scores.items():
        if score.reason:
            names[score.reason].append(name)
    return "; ".join(f"{', '.join(of)}: {reason}" for reason, of in names.items())


def _joined(texts: Mapping[str, str]) -> str:
    return "\n\n".join(f"{name}: {text}" for name, text in texts.items() if text)


def _shown(totals: Mapping[str, float]) -> str:
    return ", ".join(f"{name} is {value:g}" for name, value in totals.items())
