"""Where a job's time goes: its spans as bars of a chart, one lane a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portal.jobs.models import Job, JobEvent

STAGES = ("queue", "prepare", "rollout", "environment", "train", "publish", "evaluate")
MAX_SPANS = 120
"""Shown at once; what came before is a page of its own."""
SHORTEST = 0.12
"""Per cent of the width: what is shorter could not be seen."""


@dataclass(frozen=True)
class Bar:
    left: float
    """Per cent of the width."""
    width: float
    title: str


@dataclass(frozen=True)
class Lane:
    stage: str
    bars: list[Bar]
    seconds: float
    share: float
    """Of the time shown during which the stage was at work, 0 to 1."""


@dataclass(frozen=True)
class Timeline:
    lanes: list[Lane]
    """Of the stages that have spans, in the order of the work."""
    start: float
    end: float
    """Seconds since the epoch."""
    ticks: list[tuple[float, float]]
    """(per cent of the width, seconds since the start)"""
    earlier: int | None
    """Cursor of the spans before these."""
    is_latest: bool

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start


def build_timeline(job: Job, *, before: int | None = None) -> Timeline | None:
    """The latest ``MAX_SPANS`` spans (of those reported below seq ``before``); None where there are none."""
    spans = JobEvent.objects.filter(job=job, type="span", seq__lte=job.last_seq)
    if before is not None:
        spans = spans.filter(seq__lt=before)
    found = list(spans.order_by("-seq").values_list("seq", "payload")[: MAX_SPANS + 1])
    earlier = found[MAX_SPANS - 1][0] if len(found) > MAX_SPANS else None
    payloads = [payload for _, payload in found[:MAX_SPANS]]
    if not payloads:
        return None
    start, end = min(span["start"] for span in payloads), max(span["end"] for span in payloads)
    length = max(end - start, 1e-3)
    lanes = [_lane(stage, [span for span in payloads if span["stage"] == stage], start, length) for stage in STAGES]
    ticks = [(100 * at / length, at) for at in _tick_times(length)]
    return Timeline([lane for lane in lanes if lane.bars], start, end, ticks, earlier, is_latest=before is None)


def _lane(stage: str, spans: list[dict[str, Any]], start: float, length: float) -> Lane:
    bars = [
        Bar(
            left=100 * (span["start"] - start) / length,
            width=max(SHORTEST, 100 * (span["end"] - span["start"]) / length),
            title=_title(span),
        )
        for span in sorted(spans, key=lambda span: span["start"])
    ]
    busy = _union([(span["start"], span["end"]) for span in spans])
    return Lane(stage, bars, seconds=busy, share=busy / length)


def _title(span: dict[str, Any]) -> str:
    tokens = f", {span['tokens']} tokens" if span.get("tokens") else ""
    return f"{span['stage']} on {span['worker']}: {span['end'] - span['start']:.2f} s{tokens}"


def _union(intervals: list[tuple[float, float]]) -> float:
    """Total length; what overlaps counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _tick_times(length: float) -> list[float]:
    """Four to eight round times within ``length`` seconds."""
    rounds = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
    step = next((each for each in rounds if length / each <= 8), length / 6)
    return [index * step for index in range(int(length / step) + 1)]
