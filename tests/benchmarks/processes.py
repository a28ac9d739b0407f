"""Sides of a comparison, each in a process of its own, so that libraries, threads and memory stay apart.

A side is a module run as ``python -m MODULE ARGUMENTS``: it reads one JSON command a line and answers each with one
JSON line. ``Side`` is the parent's end, ``serve`` the child's. The standard library alone: a side may have an
environment of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class SideFailed(RuntimeError):
    """The side ended, or answered with an error; the message is its last."""


class Side:
    """A running side."""

    def __init__(self, command: list[str], log: Path, **env: str) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **env}
            )

    def ask(self, what: str, **arguments: Any) -> Any:
        """Have the side do something; its answer. Raises SideFailed."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"what": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SideFailed(f"the process ended with {self._process.wait()}:\n{self._log.read_text()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise SideFailed(answer["error"])
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def side(module: str, *arguments: str, log: Path, python: str = sys.executable, **env: str) -> Iterator[Side]:
    """Run a module as a side until the block ends; ``module`` may also be the path of a script."""
    command = [python, module] if module.endswith(".py") else [python, "-m", module]
    running = Side([*command, *arguments], log, **env)
    try:
        yield running
    finally:
        running.close()


def serve(commands: dict[str, Callable[..., Any]]) -> None:
    """The child's end: run commands until the parent closes. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"result": commands[command.pop("what")](**command)}
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def peak_bytes() -> int:
    """Largest resident memory of this process since ``forget_peak``, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> None:
    """Begin to watch anew."""
    Path("/proc/self/clear_refs").write_text("5")
