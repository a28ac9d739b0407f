"""Medians, quantiles, fairness, and the order in which cases are measured. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

Case = TypeVar("Case")


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values, as numpy's default.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def interleaved(cases: Sequence[Case], repeats: int) -> Iterator[tuple[int, Case]]:
    """(repeat, case): every case once a repeat, each repeat beginning with another case, so that a machine that grows
    slower or faster favours none.

    >>> [case for _, case in interleaved("ab", 2)]
    ['a', 'b', 'b', 'a']
    """
    for repeat in range(repeats):
        shift = repeat % max(1, len(cases))
        for case in [*cases[shift:], *cases[:shift]]:
            yield repeat, case


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 where all are equal, 1/n where one has everything.

    >>> jain([1.0, 1.0, 0.0, 0.0])
    0.5
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise linear through ``points`` (ascending in x); beyond the ends it goes on as the nearest piece does, but
    not below 0.

    >>> interpolate([(1, 10), (3, 30)], 2), interpolate([(1, 10), (3, 30)], 5)
    (20.0, 50.0)
    """
    if len(points) == 1:
        return float(points[0][1])
    index = next((i for i in range(1, len(points)) if x <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))
