"""Accelerator time of a shared worker, split between those it serves at once.

Invariant: what is metered for all owners adds up to the time in which the worker served anybody.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SharedMeter:
    """While k requests are served at once, each accrues a k-th of the time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._serving: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = clock()

    @contextmanager
    def serve(self, owner: str) -> Iterator[None]:
        """A request of ``owner`` is being served inside the ``with``."""
        self._settle()
        self._serving[owner] += 1
        try:
            yield
        finally:
            self._settle()
            self._serving -= Counter({owner: 1})

    def take(self, owner: str) -> float:
        """Seconds of ``owner`` since the last call."""
        self._settle()
        return self._seconds.pop(owner, 0.0)

    def _settle(self) -> None:
        now = self._clock()
        total = self._serving.total()
        for owner, count in self._serving.items():
            self._seconds[owner] += (now - self._since) * count / total
        self._since = now
