"""What a trial's scores say about learning: their spread, and whether there is anything to learn from.

A job learns from the differences between completions of the same prompt (their group). Where all of a group score the
same, its advantages are zero and it teaches nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

BINS = 10
EQUAL = 1e-9
MOSTLY = 0.8
OFTEN_TRUNCATED = 0.5


@dataclass(frozen=True)
class Finding:
    """One thing the author should know."""

    level: str
    """``good``, ``warning`` or ``error``."""
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Signal:
    """The spread of the scores of one trial."""

    count: int
    errors: int
    mean: float
    deviation: float
    low: float
    high: float
    histogram: list[int]
    """Completions by score in ``BINS`` equal steps of [0, 1]; 1 belongs to the last."""
    groups: int
    """Prompts with at least two completions."""
    flat_groups: int
    """Those whose completions all score the same."""
    findings: list[Finding]

    @property
    def teaching(self) -> int:
        """Prompts whose completions differ in score."""
        return self.groups - self.flat_groups


def read_signal(scores: list[list[dict[str, Any]]]) -> Signal | None:
    """``scores``: [case][completion] of ``engine.spec.trial.TrialScore``; None where there are none."""
    every = [score for group in scores for score in group]
    if not every:
        return None
    totals = [score["total"] for score in every]
    groups = [[score["total"] for score in group] for group in scores if len(group) > 1]
    bins = Counter(min(BINS - 1, max(0, int(total * BINS))) for total in totals)
    flat = sum(max(group) - min(group) <= EQUAL for group in groups)
    return Signal(
        count=len(every),
        errors=sum(score["error"] for score in every),
        mean=fmean(totals),
        deviation=pstdev(totals),
        low=min(totals),
        high=max(totals),
        histogram=[bins[index] for index in range(BINS)],
        groups=len(groups),
        flat_groups=flat,
        findings=_find(every, totals, groups, flat),
    )


def _find(every: list[dict[str, Any]], totals: list[float], groups: list[list[float]], flat: int) -> list[Finding]:
    found = _errors(every)
    if not groups:
        if len(every) > 1:
            found.append(
                Finding(
                    "warning", "one_sample", "With one completion of each prompt nothing can be said about learning.",
                    "Draw several samples of each: a job learns from their differences.",
                )
            )  # fmt: skip
    elif max(totals) - min(totals) <= EQUAL:
        found.append(_all_the_same(totals[0], len(totals)))
    elif flat == len(groups):
        found.append(
            Finding(
                "error", "no_variance",
                "No learning signal: the samples of each prompt all score the same, though prompts differ.",
                "Raise the temperature, draw more samples, or give partial credit, for example by a mix.",
            )
        )  # fmt: skip
    elif flat >= MOSTLY * len(groups):
        found.append(
            Finding(
                "warning", "little_variance",
                f"Little learning signal: in {flat} of {len(groups)} prompts all samples score the same.",
                "Easier or harder prompts, more samples, or partial credit let more of them teach something.",
            )
        )  # fmt: skip
    elif not any(score["error"] for score in every):
        text = f"There is a learning signal: in {len(groups) - flat} of {len(groups)} prompts the samples differ."
        found.append(Finding("good", "signal", text))
    cut = sum(score["truncated"] for score in every)
    if cut > OFTEN_TRUNCATED * len(every):
        found.append(
            Finding(
                "warning", "truncated", f"{cut} of {len(every)} completions were cut off at the token limit.",
                "Allow more tokens, or ask for shorter answers.",
            )
        )  # fmt: skip
    return found


def _errors(every: list[dict[str, Any]]) -> list[Finding]:
    failed = sum(score["error"] for score in every)
    if not failed:
        return []
    if failed == len(every):
        return [Finding("error", "all_errors", "The reward failed on every completion.", "See the first error below.")]
    text = f"The reward failed on {failed} of {len(every)} completions; they count as 0."
    return [Finding("warning", "errors", text, "In a job, failures are noise: repair them first.")]


def _all_the_same(total: float, count: int) -> Finding:
    if total <= EQUAL:
        text = f"No learning signal: all {count} completions score 0."
        hint = "Easier prompts, or partial credit (a mix with a part the model can reach), give it a start."
        return Finding("error", "all_zero", text, hint)
    if total >= 1 - EQUAL:
        text = f"No learning signal: all {count} completions score 1."
        hint = "Either the model can do this already, or the reward is too easily satisfied: read some completions."
        return Finding("error", "all_one", text, hint)
    text = f"No learning signal: all {count} completions score {total:.3g}."
    return Finding("error", "all_same", text, "The reward does not tell good from bad: read some completions.")
