"""When episodes were in which stage, and how a batch's time divides between the stages.

Episodes overlap, and so does what they wait for: while some draw, others wait for their environment. So the time in
which a batch is drawn is shared between rollout and environment in proportion to the time its episodes spent in each;
the two add up to that time, and neither counts twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from engine.events import Span

Timed = Literal["rollout", "environment"]
EpisodeSeconds = dict[Timed, float]
"""Seconds spent in a stage, added up over episodes."""

MOST_SPANS = 16
"""Of one stage on one worker in a batch; the shortest gaps between more are closed."""


class StageTimes:
    """Collects the intervals of one group's episodes, which overlap, and tells when any of them was in a stage."""

    def __init__(self) -> None:
        self._spans: dict[Timed, list[Span]] = {"rollout": [], "environment": []}
        self.episode_seconds: EpisodeSeconds = {"rollout": 0.0, "environment": 0.0}

    def add(
        self, stage: Timed, start: float, end: float, tokens: int = 0, *, episodes: int = 1, worker: str = ""
    ) -> None:
        """``episodes`` of the group were in the stage from ``start`` to ``end``, in seconds since the epoch."""
        self._spans[stage].append(Span(stage=stage, worker=worker or stage, start=start, end=end, tokens=tokens))
        self.episode_seconds[stage] += episodes * (end - start)

    def spans(self) -> list[Span]:
        """Rollout's spans, then the environment's; those of one stage on one worker do not overlap, and their tokens
        are added up."""
        return [merged for spans in self._spans.values() for merged in merge_spans(spans)]


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Per stage and worker the times in which anything was in it, with all tokens: at most ``MOST_SPANS`` each."""
    by_place: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        by_place[span.stage, span.worker].append(span)
    return [merged for at_place in by_place.values() for merged in _close_gaps(_union(at_place))]


def stage_seconds(spans: Iterable[Span], spent: Iterable[EpisodeSeconds]) -> EpisodeSeconds:
    """The time in which a batch was drawn, divided between the stages.

    Args:
        spans: all of the batch's.
        spent: of each group.
    """
    anywhere = [Span(stage="rollout", worker="", start=span.start, end=span.end) for span in spans]
    drawn = sum(span.end - span.start for span in _union(anywhere))
    rollout, environment = 0.0, 0.0
    for of_group in spent:
        rollout += of_group["rollout"]
        environment += of_group["environment"]
    share = environment / (rollout + environment) if environment else 0.0
    return {"rollout": drawn * (1 - share), "environment": drawn * share}


def _union(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if merged and span.start <= merged[-1].end:
            merged[-1] = _joined(merged[-1], span)
        else:
            merged.append(span)
    return merged


def _close_gaps(spans: list[Span]) -> list[Span]:
    """Join those of ascending ``spans`` that are nearest to each other until ``MOST_SPANS`` are left."""
    gaps = sorted(range(1, len(spans)), key=lambda i: spans[i].start - spans[i - 1].end, reverse=True)
    kept = set(gaps[: MOST_SPANS - 1])
    merged = spans[:1]
    for index, span in enumerate(spans[1:], start=1):
        if index in kept:
            merged.append(span)
        else:
            merged[-1] = _joined(merged[-1], span)
    return merged


def _joined(one: Span, other: Span) -> Span:
    return one.model_copy(update={"end": max(one.end, other.end), "tokens": one.tokens + other.tokens})
