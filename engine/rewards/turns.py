"""Who is next: calls of many owners (jobs) before a fixed number of workers.

Invariant: one owner's hanging calls never hold all workers for longer than one time limit. That is kept by two rules.
An owner occupies at most all workers but one. Owners that lost a worker within the last ``SUSPECT_SECONDS`` together
occupy at most all but one. So with W >= 2 workers a call of an owner in good standing waits for at most one time limit
of owners that start to hang at the same moment, and otherwise only for calls that end by themselves; owners take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

SUSPECT_SECONDS = 60.0


class Waiting(Protocol):
    """A call, as the queue sees it. One whose result is done has been given up by its caller."""

    owner: str
    result: asyncio.Future[Any]


C = TypeVar("C", bound=Waiting)


class FairQueue(Generic[C]):
    """Calls that wait, and how many of each owner's run."""

    def __init__(self, workers: int) -> None:
        if workers < 2:
            raise ValueError(f"a pool needs at least 2 workers, not {workers}: one that hangs must not stop all")
        self._share = workers - 1
        self._queues: OrderedDict[str, deque[C]] = OrderedDict()  # by owner, in the order of their turns
        self._busy: Counter[str] = Counter()
        self._suspect_until: dict[str, float] = {}

    def put(self, call: C) -> None:
        self._queues.setdefault(call.owner, deque()).append(call)

    def start_next(self, can_run: Callable[[C], bool] = lambda call: True) -> C | None:
        """The first call, in the order of turns, of an owner that may have another worker; it counts as running until
        ``finished``. An owner's calls start in order, so one that cannot run now holds back those behind it."""
        now = time.monotonic()
        self._suspect_until = {owner: until for owner, until in self._suspect_until.items() if until > now}
        held_by_suspects = sum(self._busy[owner] for owner in self._suspect_until)
        for owner, calls in list(self._queues.items()):
            while calls and calls[0].result.done():  # its caller was cancelled
                calls.popleft()
            if not calls:
                del self._queues[owner]
                continue
            held = held_by_suspects if owner in self._suspect_until else self._busy[owner]
            if held < self._share and can_run(calls[0]):
                self._queues.move_to_end(owner)
                self._busy[owner] += 1
                return calls.popleft()
        return None

    def take_along(self, owner: str, fits: Callable[[C], bool], at_most: int) -> list[C]:
        """Calls of the owner that are next in its queue and fit, to run together with the one just started."""
        calls, taken = self._queues.get(owner, deque()), list[C]()
        while calls and len(taken) < at_most and (calls[0].result.done() or fits(calls[0])):
            call = calls.popleft()
            if not call.result.done():
                taken.append(call)
        return taken

    def finished(self, owner: str) -> None:
        self._busy -= Counter({owner: 1})

    def suspect(self, owner: str) -> None:
        """The owner has lost a worker."""
        self._suspect_until[owner] = time.monotonic() + SUSPECT_SECONDS

    def clear(self) -> list[C]:
        """Forget all calls that wait, and return them."""
        waiting = [call for calls in self._queues.values() for call in calls]
        self._queues.clear()
        return waiting
