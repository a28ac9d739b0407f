"""When something was at work: unions of intervals, and their share of a stretch of time. Pure Python.

An interval is (start, end) in seconds on any clock.
"""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals, ascending, that cover what the given ones cover.

    >>> union([(3, 4), (0, 1), (1, 2), (3.5, 5)])
    [(0, 2), (3, 5)]
    """
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def covered(intervals: Iterable[Interval], start: float, end: float) -> float:
    """Seconds of [start, end] in which at least one interval runs."""
    return sum(max(0.0, min(stop, end) - max(begin, start)) for begin, stop in union(intervals))


def share(intervals: Iterable[Interval], start: float, end: float) -> float:
    """The same as a share of the stretch; 0 for an empty one."""
    return covered(intervals, start, end) / (end - start) if end > start else 0.0


def timeline(intervals: Iterable[Interval], start: float, end: float, buckets: int) -> list[float]:
    """The share of each of ``buckets`` equal parts of [start, end]."""
    merged = union(intervals)
    width = (end - start) / buckets
    return [share(merged, start + index * width, start + (index + 1) * width) for index in range(buckets)]
