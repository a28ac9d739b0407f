"""Starts, watches and stops every process of an installation on one machine.

Invariants: one supervisor a checkout (a lock file held for life); a child that dies is named with its last log lines
and started again with growing pauses; when the supervisor ends, by Ctrl-C, SIGTERM or error, no process that it or
its children started is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP_SECONDS = 10.0
"""How long a child may take to end on SIGTERM before it is killed."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
HEALTHY_SECONDS = 60.0
"""A child that ran so long is restarted after the first pause again."""
LOG_LINES = 12

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Child:
    """A process to keep running."""

    name: str
    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] = lambda: True
    """The next child is started once this says so."""
    ready_seconds: float = 60.0
    takes_down: tuple[str, ...] = ()
    """Children that cannot outlive this one and are started anew after it."""


class StartFailed(RuntimeError):
    """A child did not become ready; the message ends with its last log lines."""


def die_with_parent() -> None:
    """Run in a new child: it gets SIGTERM when the supervisor dies, even by SIGKILL."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def last_lines(path: Path, count: int = LOG_LINES) -> str:
    """The end of a log file."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_384))
        return "\n".join("    " + line for line in file.read().decode(errors="replace").splitlines()[-count:])


class Supervisor:
    """See the module's docstring. ``say`` gets lines meant for the terminal."""

    def __init__(self, children: list[Child], log_dir: Path, say: Callable[[str], None]) -> None:
        self._children = children
        self._log_dir = log_dir
        self._say = say
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self.stop_seconds = STOP_SECONDS
        log_dir.mkdir(parents=True, exist_ok=True)
        self._others = {process.pid for process in psutil.Process().children()}
        # Orphans of our children become ours, so that none escapes the end.
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def log_path(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    async def start(self) -> None:
        """Start all children in order, each once the one before it is ready. Raises StartFailed."""
        for child in self._children:
            await self._spawn(child)
            await self._until_ready(child)
            self._watchers.append(asyncio.create_task(self._watch(child), name=f"watch {child.name}"))

    async def stop(self) -> None:
        """End all children, last started first, then whatever they left behind."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for child in reversed(self._children):
            await self._end(child.name)
        await asyncio.to_thread(kill_children, self._others)

    async def _spawn(self, child: Child) -> None:
        with self.log_path(child.name).open("ab") as log:
            log.write(f"--- started {time.strftime('%Y-%m-%d %H:%M:%S')}: {' '.join(child.command)}\n".encode())
            log.flush()
            self._running[child.name] = await asyncio.create_subprocess_exec(
                *child.command,
                env={**os.environ, **child.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which ends them in order
                preexec_fn=die_with_parent,
            )

    async def _until_ready(self, child: Child) -> None:
        deadline = time.monotonic() + child.ready_seconds
        process = self._running[child.name]
        while process.returncode is None and time.monotonic() < deadline:
            if await asyncio.to_thread(child.ready):
                return
            await asyncio.sleep(0.1)
        state = f"ended with {describe_exit(process.returncode)}" if process.returncode is not None else "is not ready"
        raise StartFailed(
            f"{child.name} {state}; the end of {self.log_path(child.name)}:\n{last_lines(self.log_path(child.name))}"
        )

    async def _watch(self, child: Child) -> None:
        """Restart the child whenever it dies."""
        pause = FIRST_PAUSE
        while True:
            started = time.monotonic()
            code = await self._running[child.name].wait()
            if time.monotonic() - started > HEALTHY_SECONDS:
                pause = FIRST_PAUSE
            self._say(
                f"{child.name} died ({describe_exit(code)}); starting it again in {pause:g} s. "
                f"The end of {self.log_path(child.name)}:\n{last_lines(self.log_path(child.name))}"
            )
            for name in child.takes_down:
                await self._end(name)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            await self._spawn(child)

    async def _end(self, name: str) -> None:
        process = self._running.get(name)
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self.stop_seconds):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def describe_exit(code: int | None) -> str:
    """``exit code 3`` or ``signal SIGKILL``."""
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def kill_children(others: set[int]) -> None:
    """Kill what the children left behind (as subreaper this process is its parent now), but no pid in ``others``."""
    for _ in range(5):
        children = [process for process in psutil.Process().children() if process.pid not in others]
        left = [descendant for child in children for descendant in [child, *child.children(recursive=True)]]
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=3)
