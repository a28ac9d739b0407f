"""One worker process of the sandbox, seen from outside."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from engine.rewards.process import LineProcess, exit_words
from engine.sandbox import runtime
from engine.sandbox.replies import error
from engine.types import ErrorKind, Score

START_SECONDS = 60.0
LATE_SECONDS = 5.0
"""The worker stops a call at its time limit by itself. One that does not answer so long after it is stopped whole."""
MAX_ANSWER = 1 << 20
"""Bytes of an answer's line: its reply, escaped."""


class CannotStart(Exception):
    """The worker does not come up."""

    def __init__(self, kind: ErrorKind, reason: str) -> None:
        super().__init__(reason)
        self.score = error(kind, reason)


class WorkerLost(Exception):
    """The worker ended, or hung, before it had answered."""

    def __init__(self, code: int, hung: bool) -> None:
        super().__init__(code)
        self.code = code
        self.hung = hung

    def score(self) -> Score:
        if self.hung:
            return error("timed_out", "the sandbox did not answer in time and was stopped")
        return error("killed", f"the sandbox ended unexpectedly ({exit_words(self.code)})")


class SandboxWorker:
    """Serves one version of one tenant's code; started when first needed and again after it was lost."""

    def __init__(self, level: runtime.ConfiningLevel, setup: dict[str, Any]) -> None:
        self._level = level
        self._setup = setup
        self._process = LineProcess(runtime.command(level), runtime.ENVIRONMENT, MAX_ANSWER)
        self.requests = 0
        """Requests since it was started."""
        self.used = time.monotonic()

    @property
    def id(self) -> int | None:
        """Process id of its process group's leader, None where it does not run."""
        return self._process.id

    async def answers(self, calls: list[Any], timeout: float) -> AsyncIterator[dict[str, Any]]:
        """The answers to calls, in order; see ``inside.worker``.

        Raises:
            CannotStart: it does not come up. The score says why.
            WorkerLost: it ended or hung; it is gone, and the next request starts a new one.
        """
        complete = False
        try:
            if not self._process.alive:
                await self._start()
            await self._process.write(json.dumps({"calls": calls, "timeout": timeout}).encode() + b"\n")
            self.requests += 1
            for _ in calls:
                answer = await self._process.read(timeout + LATE_SECONDS)
                if answer is None:
                    raise WorkerLost(await self.stop(), hung=True)
                yield answer
            complete = True
        except (EOFError, ConnectionError, ValueError):
            raise WorkerLost(await self.stop(), hung=False) from None
        finally:
            self.used = time.monotonic()
            if not complete:
                await self.stop()

    async def stop(self) -> int:
        """Kill it with all its children. Returns its exit code, 0 where it does not run."""
        self.requests = 0
        return await self._process.stop()

    async def _start(self) -> None:
        uid = runtime.BASE_UID + self._process.start()
        setup = {
            **self._setup,
            "packages": runtime.runtime().packages,
            "metadata": runtime.runtime().metadata,
            "confinement": runtime.confinement(self._level, uid),
        }
        await self._process.write(json.dumps(setup).encode() + b"\n")
        try:
            ready = await self._process.read(START_SECONDS)
        except (EOFError, ConnectionError):
            code = await self.stop()
            raise CannotStart("killed", f"the sandbox ended while it loaded the code ({exit_words(code)})") from None
        if ready is None:
            raise CannotStart("timed_out", f"the sandbox did not load the code in {START_SECONDS:g} s")
        if "failed" in ready:
            raise CannotStart(ready["failed"], ready["reason"])
