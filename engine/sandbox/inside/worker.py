"""The sandbox's worker: ``python -m engine.sandbox.inside.worker``, JSON lines over stdin and stdout.

The first line sets it up: the code of one version of one tenant's reward, and how to confine (``Confinement``). It
answers ``{"ready": true}``, or ``{"failed": kind, "reason": ...}``. Then each request is ``{"calls": [...], "timeout":
seconds}``; each call is answered by a line ``{"ended": how, "code": int, "seconds": float, "reply": str}``, in order.

Invariants: this process runs none of the stranger's code: it compiles it once, and forks a process for every request
(made ready beforehand, so that nobody waits for it). The calls of one request may share a process; see ``calls.serve``
for what keeps them apart. The process of a request holds neither the requests nor the answers of others, and is killed
by SIGKILL once it has answered, taken too long or answered too much; what it leaves in /tmp is then removed.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from engine.sandbox.inside import calls, code_tests, seccomp
from engine.sandbox.inside.confinement import Confinement

MAX_REPLY = 131_072
REPLY_FD, REQUEST_FD, MAX_FD = 3, 4, 64
NOT_PRELOADED = frozenset(
    "antigravity this idlelib tkinter turtle turtledemo lib2to3 test ensurepip venv __main__".split()
)
COMMON = (
    "base64 bisect collections copy csv dataclasses datetime decimal difflib enum fractions functools hashlib heapq "
    "html itertools json math operator random re statistics string tempfile textwrap time traceback typing unicodedata"
)


def main() -> None:
    requests, answers = _protocol_streams()
    setup = json.loads(requests.readline())
    os.environ.clear()
    _preload(setup)
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    try:
        Confinement(**setup["confinement"]).enter()
    except OSError as error:
        _send(answers, {"failed": "refused", "reason": f"this machine cannot confine: {error}"})
        return
    os.dup2(0, 2)  # errors until here are the engine's to see
    gc.collect()
    gc.freeze()
    try:
        run_one = _runner(setup)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        _send(answers, {"failed": "syntax", "reason": f"{type(error).__name__}: {error}"[: calls.MAX_REASON]})
        return
    tmp = setup["confinement"]["tmp"]
    service = calls.Service(run_one, tuple(_imports(setup.get("code", ""))), tmp)
    process = CallProcess(service)
    _send(answers, {"ready": True})
    while line := requests.readline():
        request = json.loads(line)
        waiting = request["calls"]
        while waiting:
            for answer in process.run(waiting, request["timeout"]):
                _send(answers, answer)
                waiting = waiting[1:]
            process.end()
            _clear(tmp)
            process = CallProcess(service)


class CallProcess:
    """A process for the calls of one request, forked and confined before they are known."""

    def __init__(self, service: calls.Service) -> None:
        self._token = os.urandom(8).hex().encode()
        theirs_in, self._requests = os.pipe()
        self._replies, theirs_out = os.pipe()
        self._id = os.fork()
        if self._id == 0:
            _serve(service, theirs_in, theirs_out, self._token)
        os.close(theirs_in)
        os.close(theirs_out)
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)

    def run(self, waiting: list[Any], timeout: float) -> Iterator[dict[str, Any]]:
        """The answers to the first calls, at least one: as many as this process has served.

        ``ended`` is ``answered``, ``timed_out``, ``too_much_output`` or ``died``; ``code`` is the exit code of one
        that died, negative for a signal.
        """
        with os.fdopen(self._requests, "wb") as requests:
            requests.write(json.dumps(waiting).encode())
        unread = bytearray()
        for served in range(len(waiting)):
            start = time.monotonic()
            ended, line = self._read_line(unread, start + timeout)
            if ended == "died" and served:
                return  # it has had enough of sharing: the next call gets a process of its own
            seconds = time.monotonic() - start
            reply = line.removeprefix(self._token).decode(errors="replace")
            yield {"ended": ended, "code": 0 if line else self.end(), "seconds": seconds, "reply": reply}
            if ended != "answered":
                return

    def end(self) -> int:
        """Kill the process, whatever it does, and return its exit code: its own where it had ended by itself."""
        if self._id:
            os.close(self._replies)
            os.kill(self._id, signal.SIGKILL)
            _, status = os.waitpid(self._id, 0)
            self._id, self._code = 0, os.waitstatus_to_exitcode(status)
        return self._code

    def _read_line(self, unread: bytearray, deadline: float) -> tuple[str, bytes]:
        while b"\n" not in unread:
            if len(unread) > MAX_REPLY:
                return "too_much_output", b""
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return "timed_out", b""
            piece = os.read(self._replies, 65_536)
            if not piece:
                return "died", b""
            unread += piece
        line, _, rest = bytes(unread).partition(b"\n")
        unread[:] = rest
        return ("answered", line) if line.startswith(self._token) else ("died", b"")


def _serve(service: calls.Service, reading: int, writing: int, token: bytes) -> NoReturn:
    """The process of one request: gives up every descriptor but its own two, and every call it needs no more."""
    try:
        os.dup2(writing, REPLY_FD)
        os.dup2(reading, REQUEST_FD)
        os.closerange(REQUEST_FD + 1, MAX_FD)
        seccomp.install(seccomp.CALL)
        calls.warm_up()
        with os.fdopen(REQUEST_FD, "rb") as requests:
            waiting = json.loads(requests.read())
        calls.serve(service, waiting, REPLY_FD, token)
    finally:
        os._exit(0)


def _runner(setup: dict[str, Any]) -> calls.RunOne:
    """What runs one call. Raises SyntaxError and what else the compiler raises."""
    if "code" not in setup:
        return code_tests.run_call
    code = compile(setup["code"], calls.FILE_NAME, "exec", dont_inherit=True)
    return calls.RewardRunner(code, setup["code"], setup["function"], setup["batch"])


def _clear(tmp: str) -> None:
    """Remove what a call has left: at most a few hundred files, see ``Confinement.tmp_files``."""
    for entry in list(os.scandir(tmp)) if tmp else []:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


class _Packages(importlib.abc.MetaPathFinder):
    """Finds the few packages of the runtime where they lie, without their neighbours."""

    def __init__(self, packages: dict[str, str], metadata: dict[str, str]) -> None:
        self._packages = packages
        self._metadata = metadata

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if (place := self._packages.get(name)) is None:
            return None
        if place.endswith(".py"):
            return importlib.util.spec_from_file_location(name, place)
        return importlib.util.spec_from_file_location(name, f"{place}/__init__.py", submodule_search_locations=[place])

    def find_distributions(self, context: Any) -> Iterator[importlib.metadata.Distribution]:
        """For packages that ask for the version of another."""
        if place := self._metadata.get(context.name):
            yield importlib.metadata.PathDistribution(pathlib.Path(place))


def _preload(setup: dict[str, Any]) -> None:
    """Import what calls are likely to import, so that each finds it loaded: modules of the runtime, nothing else."""
    sys.meta_path.append(_Packages(setup["packages"], setup["metadata"]))
    known = (sys.stdlib_module_names | setup["packages"].keys()) - NOT_PRELOADED
    for name in [*COMMON.split(), *_imports(setup.get("code", ""))]:
        if name.split(".")[0] in known:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _imports(code: str) -> list[str]:
    """Names of the modules that the code imports anywhere."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return names + (["asyncio"] if any(isinstance(node, ast.AsyncFunctionDef) for node in nodes) else [])


def _send(answers: BinaryIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    answers.flush()


def _protocol_streams() -> tuple[BinaryIO, BinaryIO]:
    """Streams of the protocol on descriptors of their own; stdin and stdout then lead nowhere."""
    streams = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return streams


if __name__ == "__main__":
    main()
