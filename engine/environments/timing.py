"""When a group's episodes were in which stage."""

from __future__ import annotations

from typing import Literal

from engine.events import Span

Timed = Literal["rollout", "environment"]


class StageTimes:
    """Collects the intervals of one group's episodes, which overlap, and tells when any of them was in a stage."""

    def __init__(self) -> None:
        self._intervals: dict[Timed, list[tuple[float, float, int]]] = {"rollout": [], "environment": []}

    def add(self, stage: Timed, start: float, end: float, tokens: int = 0) -> None:
        self._intervals[stage].append((start, end, tokens))

    def spans(self) -> list[Span]:
        """Rollout's spans, then the environment's; those of one stage do not overlap, their tokens are added up."""
        return [
            Span(stage=stage, worker=stage, start=start, end=end, tokens=tokens)
            for stage, intervals in self._intervals.items()
            for start, end, tokens in _union(intervals)
        ]


def _union(intervals: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    merged: list[tuple[float, float, int]] = []
    for start, end, tokens in sorted(intervals):
        if merged and start <= merged[-1][1]:
            before, until, sampled = merged[-1]
            merged[-1] = (before, max(until, end), sampled + tokens)
        else:
            merged.append((start, end, tokens))
    return merged
