"""The processes of the installation this process supervises: found by kind, killed, measured."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import psutil


def _is_actor(name: str) -> Callable[[list[str]], bool]:
    return lambda command: command[0].startswith(f"ray::{name}")


def _mentions(*words: str) -> Callable[[list[str]], bool]:
    return lambda command: all(any(word in part for part in command) for word in words)


MATCHES: dict[str, Callable[[list[str]], bool]] = {
    "controller": _is_actor("Controller"),
    "trainer": _is_actor("Trainer"),
    "rollout": _is_actor("RolloutWorker"),
    "environment": _is_actor("EnvironmentWorker"),
    "grader": _mentions("engine.rewards.worker"),
    "engine": _mentions("engine.celery"),
    "events": _mentions("portal.celery", "events@"),
    "web": _mentions("uvicorn"),
    "redis": lambda command: "valkey-server" in command[0] or "redis-server" in command[0],
    "ray": _mentions("gcs_server", "--"),
}
"""By the kinds of ``portal.ops.soak_plan.KILLED``: whether a command line is of that kind."""


def find(kind: str) -> list[int]:
    """Pids of the running processes of a kind."""
    return [process.pid for process, command in _descendants() if MATCHES[kind](command)]


def kill_one(kind: str, draw: float) -> int | None:
    """kill -9 one process of the kind, chosen by ``draw`` in [0, 1); its pid, or None where none runs."""
    pids = find(kind)
    if not pids:
        return None
    pid = pids[int(draw * len(pids))]
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return pid


def resident_bytes() -> int:
    """Resident memory of this process and all its descendants, shared pages counted in each."""
    total = 0
    for process in [psutil.Process(), *(process for process, _ in _descendants())]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def _descendants() -> Iterator[tuple[psutil.Process, list[str]]]:
    for process in psutil.Process().children(recursive=True):
        try:
            command = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if command:
            yield process, command
