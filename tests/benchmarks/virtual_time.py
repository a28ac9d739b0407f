"""asyncio on a clock that jumps: production coroutines run unchanged, and hours pass in seconds.

Invariant: time moves only when nothing can run, and then to the next timer; the same program takes the same course
every time. Threads and I/O do not belong here.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Stuck(RuntimeError):
    """Everything waits and no timer is set."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for I/O, lets the time pass."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("everything waits for something that never comes")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module's docstring. ``time()`` begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As ``asyncio.run``, on a loop of its own. Raises Stuck."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
