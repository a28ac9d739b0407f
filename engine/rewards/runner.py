"""Grading outside the engine's process: a pool of persistent worker processes with a fair queue before them.

A pattern or a formula can run for ever, so every grading has a wall-clock limit, counted from when a worker starts on
it; past it the worker's process group is killed, the episode gets an error score, and a fresh worker takes over. A
grading whose worker was killed from outside, as no grader can, is done once more.

Invariants: ``score`` answers every call with a score, whatever the grader does; owners (jobs) take turns, and one's
hanging graders never hold all workers for longer than one limit (see :mod:`engine.rewards.turns`). A worker counts as
its owner's until the one that replaces it is up: nobody else waits for the start.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from engine.rewards.process import LineProcess, exit_words
from engine.rewards.turns import FairQueue
from engine.spec import DatasetRow, DeclarativeGrader, ExactMatch, Message
from engine.types import ErrorKind, Sample, Score

START_SECONDS = 120.0
"""Within so long a worker has started and loaded a grader's code; far beyond the seconds it takes."""


@dataclass
class Call:
    """One grading asked for."""

    owner: str
    request: bytes
    timeout: float
    result: asyncio.Future[list[Score]]


class ProcessDied(Exception):
    """A grading process ended before it had answered."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def score(self) -> Score:
        return _error("killed", f"the grading process ended unexpectedly ({exit_words(self.code)})")


class GraderPool:
    """Scores completions in ``workers`` processes (at least 2). Use it from one event loop."""

    def __init__(self, workers: int) -> None:
        self._queue: FairQueue[Call] = FairQueue(workers)
        self._processes = [GraderProcess() for _ in range(workers)]
        self._idle = list(self._processes)
        self._running: dict[asyncio.Task[None], Call] = {}
        self._closed = False

    async def score(
        self, graders: Sequence[DeclarativeGrader], sample: Sample, *, timeout: float, owner: str = ""
    ) -> list[Score]:
        """Score one sample by each of the graders, in one process.

        Args:
            timeout: wall-clock limit of them all, in seconds.
            owner: the job; gradings of different owners are served in turn.

        Returns:
            A score for each grader; ``error`` with a reason where the grading failed, timed out or its process died.
        """
        if self._closed:
            raise RuntimeError("the grader pool is closed")
        result: asyncio.Future[list[Score]] = asyncio.get_running_loop().create_future()
        call = Call(owner, _encode(graders, sample), timeout, result)
        self._queue.put(call)
        self._dispatch()
        scores = await result
        return scores if len(scores) == len(graders) else scores[:1] * len(graders)

    async def close(self) -> None:
        """End every worker process. Calls not yet answered are cancelled."""
        self._closed = True
        running = dict(self._running)
        for call in [*running.values(), *self._queue.clear()]:
            call.result.cancel()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(process.stop() for process in self._processes))

    def _dispatch(self) -> None:
        while self._idle and (call := self._queue.start_next()):
            task = asyncio.create_task(self._run(self._idle.pop(), call))
            self._running[task] = call
            task.add_done_callback(self._running.pop)

    async def _run(self, process: GraderProcess, call: Call) -> None:
        scores = await process.grade(call.request, call.timeout)
        if not call.result.done():
            call.result.set_result(scores)
        if not process.alive:
            self._queue.suspect(call.owner)
            await process.warm_up()
        self._idle.append(process)
        self._queue.finished(call.owner)
        self._dispatch()


class GraderProcess:
    """One worker process at a time, started when first needed and again after it was killed."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "engine.rewards.worker", str(os.getpid())]
        self._process = LineProcess(command, {"PYTHONHASHSEED": "0"})  # the same order of sets every time

    @property
    def alive(self) -> bool:
        return self._process.alive

    def start(self) -> None:
        """Start the process; does not wait until it is ready."""
        self._process.start()

    async def warm_up(self) -> None:
        """Start the process and wait until it grades."""
        await self.grade(TRIVIAL, START_SECONDS)

    async def grade(self, request: bytes, timeout: float) -> list[Score]:
        """Score one request; one error score for all where it takes longer than ``timeout`` seconds or the process
        dies.

        After such an error, and when cancelled, the process is gone (``alive`` is false).
        """
        try:
            return await self._grade(request, timeout)
        except ProcessDied as death:
            if death.code != -signal.SIGKILL:
                return [death.score()]
        try:
            return await self._grade(request, timeout)
        except ProcessDied as death:
            return [death.score()]

    async def _grade(self, request: bytes, timeout: float) -> list[Score]:
        """As ``grade``, but raises ProcessDied."""
        if not self.alive:
            self.start()
        answered = False
        try:
            await self._process.write(request)
            if await self._process.read(START_SECONDS) is None:
                return [_error("killed", f"the grading process did not start in {START_SECONDS:g} s")]
            message = await self._process.read(timeout)
            if message is None:
                return [_error("timed_out", f"timed out after {timeout:g} s and was stopped", timeout)]
            answered = True
            return [Score(**score) for score in message["scores"]]
        except (EOFError, ConnectionError):
            raise ProcessDied(await self.stop()) from None
        finally:
            if not answered:
                await self.stop()

    async def stop(self) -> int:
        """Kill the process and reap it. Returns its exit code, 0 where none runs."""
        return await self._process.stop()


def _encode(graders: Sequence[DeclarativeGrader], sample: Sample) -> bytes:
    request = {
        "graders": [grader.model_dump_json() for grader in graders],
        "sample": {
            "row": sample.row.model_dump(),
            "completion": sample.completion,
            "turns": [{"role": turn.role, "content": turn.content} for turn in sample.turns],
        },
    }
    return json.dumps(request).encode() + b"\n"


def _error(kind: ErrorKind, reason: str, seconds: float = 0.0) -> Score:
    return Score(0.0, reason=reason, error=True, seconds=seconds, error_kind=kind)


TRIVIAL = _encode([ExactMatch()], Sample(DatasetRow(messages=[Message(role="user", content="")]), ""))
"""A grading that any worker answers at once."""
