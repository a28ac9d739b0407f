"""The timeline of all stages over all tenants: who used which stage when, and how busy each stage was.

Bars of one stage that overlap lie below each other, in as few lanes as hold them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.utils import timezone

from portal.engine_room.models import StageSpan

STAGES = {
    "queue": "Waiting for the trainer",
    "prepare": "Preparing",
    "rollout": "Rollout",
    "environment": "Environment",
    "train": "Training",
    "publish": "Publishing",
    "evaluate": "Evaluation",
}
WINDOWS = (5, 15, 60)
"""Minutes to choose from."""
WIDTH = 1000.0
"""Units of the drawing's width; the page stretches it."""
LANE = 10
"""Units of a lane's height."""
MOST_LANES = 12
MOST_SPANS = 4000
"""Of the window's newest spans, so many are drawn and counted."""
COLOURS = 6


@dataclass(frozen=True)
class Bar:
    """One span as drawn."""

    x: float
    y: int
    width: float
    colour: int
    title: str


@dataclass
class Row:
    """One stage."""

    stage: str
    label: str
    busy: float
    """Fraction of the window in which at least one job was in this stage."""
    at_once: float
    """Jobs in this stage while it was busy, on average."""
    height: int = LANE
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True)
class Timeline:
    """What the page draws."""

    minutes: int
    start: datetime
    end: datetime
    rows: list[Row]
    tenants: list[tuple[str, int]]
    """Name and colour, in the order of their names."""
    cut: bool
    """There were more spans than are drawn."""


@dataclass(frozen=True)
class _Span:
    stage: str
    start: datetime
    end: datetime
    tenant: str
    job: str


def build_timeline(*, minutes: int) -> Timeline:
    """The last ``minutes``; one query, by the index on the end of spans."""
    end = timezone.now()
    start = end - timedelta(minutes=minutes)
    values = StageSpan.objects.filter(end__gte=start).order_by("-end")
    rows = values.values_list("stage", "start", "end", "job__tenant__name", "job__name")[: MOST_SPANS + 1]
    spans = [_Span(stage, max(first, start), min(last, end), *names) for stage, first, last, *names in rows]
    cut = len(spans) > MOST_SPANS
    tenants = sorted({span.tenant for span in spans})
    colours = {name: index % COLOURS for index, name in enumerate(tenants)}
    return Timeline(
        minutes,
        start,
        end,
        [
            _row(stage, label, [s for s in spans if s.stage == stage], start, end, colours)
            for stage, label in STAGES.items()
        ],
        list(colours.items()),
        cut,
    )


def _row(stage: str, label: str, spans: list[_Span], start: datetime, end: datetime, colours: dict[str, int]) -> Row:
    window = (end - start).total_seconds()
    spans = sorted(spans, key=lambda span: span.start)
    busy = union_seconds((span.start, span.end) for span in spans)
    total = sum((span.end - span.start).total_seconds() for span in spans)
    row = Row(stage, label, busy / window, total / busy if busy else 0.0)
    free: list[datetime] = []  # when each lane is free again
    for span in spans:
        lane = next((index for index, until in enumerate(free) if until <= span.start), len(free))
        if lane == len(free):
            free.append(span.end)
        free[lane] = span.end
        if lane < MOST_LANES:
            x = WIDTH * (span.start - start).total_seconds() / window
            width = WIDTH * (span.end - span.start).total_seconds() / window
            seconds = (span.end - span.start).total_seconds()
            title = f"{span.tenant}: {span.job}, {label.lower()}, {seconds:.1f} s"
            row.bars.append(Bar(round(x, 1), lane * LANE, round(max(width, 1.0), 1), colours[span.tenant], title))
    row.height = LANE * min(MOST_LANES, max(1, len(free)))
    return row


def union_seconds(intervals: Iterable[tuple[datetime, datetime]]) -> float:
    """How long at least one of the intervals, sorted by their start, lasted."""
    total, until = 0.0, None
    for start, end in intervals:
        begin = start if until is None else max(start, until)
        total += max(0.0, (end - begin).total_seconds())
        until = end if until is None else max(until, end)
    return total
