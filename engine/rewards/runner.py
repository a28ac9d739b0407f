"""Grading outside the engine's process: a pool of persistent worker processes with a fair queue before them.

A pattern or a formula can run for ever, so every grading has a wall-clock limit, counted from when a worker starts on
it; past it the worker's process group is killed, the episode gets an error score, and a fresh worker takes over. A
grading whose worker was killed from outside, as no grader can, is done once more.

Invariants: ``score`` answers every call with a score, whatever the grader does; one owner's (job's) hanging graders
never hold all workers for longer than one limit. That is kept by two rules. An owner occupies at most all workers but
one. Owners that lost a worker within the last ``SUSPECT_SECONDS`` together occupy at most all but one. So with W >= 2
workers a call of an owner in good standing waits for at most one time limit of owners that start to hang at the same
moment, and otherwise only for gradings that end by themselves; owners take turns. A worker counts as its owner's until
the one that replaces it is up: nobody else waits for the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.spec import DatasetRow, DeclarativeGrader, ExactMatch, Message
from engine.types import ErrorKind, Sample, Score

SUSPECT_SECONDS = 60.0
GRACE_SECONDS = 0.05
START_SECONDS = 120.0
"""Within so long a worker has started and loaded a grader's code; far beyond the seconds it takes."""

ROOT = Path(__file__).resolve().parents[2]


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
        return _error("killed", f"the grading process ended unexpectedly ({_exit(self.code)})")


class GraderPool:
    """Scores completions in ``workers`` processes (at least 2). Use it from one event loop."""

    def __init__(self, workers: int) -> None:
        if workers < 2:
            raise ValueError(f"a grader pool needs at least 2 workers, not {workers}: one that hangs must not stop all")
        self._share = workers - 1
        self._processes = [GraderProcess() for _ in range(workers)]
        self._idle = list(self._processes)
        self._queues: OrderedDict[str, deque[Call]] = OrderedDict()  # by owner, in the order of their turns
        self._busy: Counter[str] = Counter()
        self._suspect_until: dict[str, float] = {}
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
        self._queues.setdefault(owner, deque()).append(call)
        self._dispatch()
        scores = await result
        return scores if len(scores) == len(graders) else scores[:1] * len(graders)

    async def close(self) -> None:
        """End every worker process. Calls not yet answered are cancelled."""
        self._closed = True
        running = dict(self._running)
        for call in [*running.values(), *(call for calls in self._queues.values() for call in calls)]:
            call.result.cancel()
        self._queues.clear()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(process.stop() for process in self._processes))

    def _dispatch(self) -> None:
        while self._idle and (call := self._next_call()):
            self._busy[call.owner] += 1
            task = asyncio.create_task(self._run(self._idle.pop(), call))
            self._running[task] = call
            task.add_done_callback(self._running.pop)

    def _next_call(self) -> Call | None:
        """The first call, in the order of turns, of an owner that may have another worker."""
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
            if held < self._share:
                self._queues.move_to_end(owner)
                return calls.popleft()
        return None

    async def _run(self, process: GraderProcess, call: Call) -> None:
        scores = await process.grade(call.request, call.timeout)
        if not call.result.done():
            call.result.set_result(scores)
        if not process.alive:
            self._suspect_until[call.owner] = time.monotonic() + SUSPECT_SECONDS
            await process.warm_up()
        self._idle.append(process)
        self._busy -= Counter({call.owner: 1})
        self._dispatch()


class GraderProcess:
    """One worker process at a time, started when first needed and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start the process; does not wait until it is ready."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            # Not asyncio's subprocess support: it needs a child watcher, which not every event loop and thread has.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.rewards.worker", str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                cwd=ROOT,
                env={"PYTHONHASHSEED": "0"},  # nothing of the engine's environment; the same order of sets every time
                start_new_session=True,
            )

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
            reader, writer = await self._connect()
            writer.write(request)
            if await _read(reader, START_SECONDS) is None:
                return [_error("killed", f"the grading process did not start in {START_SECONDS:g} s")]
            message = await _read(reader, timeout)
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
        """Kill the process with all its children and reap it. Returns its exit code, 0 where none runs."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if self._streams:
            self._streams[1].close()
            self._streams = None
        else:
            self._socket.close()
        return await asyncio.to_thread(process.wait)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket)
        return self._streams


async def _read(reader: asyncio.StreamReader, timeout: float) -> dict[str, Any] | None:
    """The next message, or None where it takes longer than ``timeout`` seconds."""
    reading = asyncio.ensure_future(reader.readline())
    try:
        done, _ = await asyncio.wait([reading], timeout=timeout)
        if not done:  # this process itself may have been held up, with the answer already here: look once more
            done, _ = await asyncio.wait([reading], timeout=GRACE_SECONDS)
        if not done:
            return None
    finally:
        reading.cancel()
    line = reading.result()
    if not line.endswith(b"\n"):
        raise EOFError
    message: dict[str, Any] = json.loads(line)
    return message


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


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


TRIVIAL = _encode([ExactMatch()], Sample(DatasetRow(messages=[Message(role="user", content="")]), ""))
"""A grading that any worker answers at once."""
