"""Calls of a stranger's code, in a process that ends with them.

The reply to a call is one JSON text, ``{"results": [...], "console": str, "seconds": float}``. A result is ``{"total":
number, "parts": {...}, "reason": str}`` or ``{"kind": str, "reason": str, "details": str}``. Nothing of it is trusted
by the reader: code under test shares the process with this module and can make it say anything, but only about itself.
"""

from __future__ import annotations

import decimal
import inspect
import json
import linecache
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

FILE_NAME = "reward.py"
MAX_CONSOLE = 8_192
"""Characters of the console that are kept."""
CONSOLE_FLOOD = 1 << 20
"""Characters printed that end the call."""
MAX_DETAILS = 4_096
MAX_REASON = 2_000
MAX_PARTS = 32
TOTAL_KEYS = ("total", "reward")


class Flooded(BaseException):
    """More was printed than any console is good for."""


@dataclass
class WrongReturn(Exception):
    """The function returned something that is no score."""

    message: str


@dataclass
class Missing(Exception):
    """The code does not define the function."""

    name: str


@dataclass
class Console:
    """Stands in for stdout and stderr: keeps the beginning of what is printed."""

    kept: list[str] = field(default_factory=list)
    written: int = 0
    encoding = "utf-8"

    def write(self, text: str) -> int:
        text = str(text)
        if (room := MAX_CONSOLE - self.written) > 0:
            self.kept.append(text[:room])
        self.written += len(text)
        if self.written > CONSOLE_FLOOD:
            raise Flooded
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def text(self) -> str:
        return "".join(self.kept) + ("\n[shortened]" if self.written > MAX_CONSOLE else "")


RunOne = Callable[[Any], list[dict[str, Any]]]
"""Runs one call and returns its results. It may raise, end the process or never return."""


@dataclass(frozen=True)
class RewardRunner:
    """Calls a reward function."""

    code: CodeType
    source: str
    function: str
    batch: bool

    def __call__(self, call: Any) -> list[dict[str, Any]]:
        """Execute the module anew and call its function.

        Args:
            call: a dict of the function's parameters; for a batch a list of those.
        """
        linecache.cache[FILE_NAME] = (len(self.source), None, self.source.splitlines(keepends=True), FILE_NAME)
        module = new_module("reward")
        exec(self.code, module)  # noqa: S102 - this is what the sandbox is for
        if not callable(reward := module.get(self.function)):
            raise Missing(self.function)
        if not self.batch:
            return [result(_await(reward(**_asked_for(reward, call))))]
        values = _await(reward(samples=call))
        if not isinstance(values, list | tuple) or len(values) != len(call):
            got = f"{len(values)} values" if isinstance(values, list | tuple) else type(values).__name__
            raise WrongReturn(f"a batch function returns a list of as many values as samples ({len(call)}), not {got}")
        return [_result_or_failure(value) for value in values]


def warm_up() -> None:
    """Go once through what every call does, so that the memory it touches is this process's own by then."""
    source = "def reward(completion): return 1"
    answer(RewardRunner(compile(source, FILE_NAME, "exec"), source, "reward", False), {"completion": ""})


@dataclass(frozen=True)
class Service:
    """What a worker's processes serve."""

    run_one: RunOne
    watched: tuple[str, ...]
    """Names of modules that are looked at for changes: those that the code imports."""
    tmp: str
    """The writable folder, empty where there is none."""


def serve(service: Service, waiting: list[Any], replies: int, token: bytes) -> None:
    """Answer calls, one line each, as long as each leaves the process as it was.

    Every call gets the module's names anew. One that leaves anything else that another could meet by accident (a
    changed name of a watched module, a further module, a file, a descriptor, a setting) is the last of this process.
    """
    write = os.write  # before the stranger's code runs, so that it cannot be replaced
    sys.stdout = sys.stderr = None
    modules = [sys.modules[name] for name in {"builtins", *service.watched} if name in sys.modules]
    untouched = _state(modules, service.tmp) if len(waiting) > 1 else None
    for call in waiting:
        line = token + answer(service.run_one, call).encode(errors="replace") + b"\n"
        while line:
            line = line[write(replies, line) :]
        if untouched is not None and _state(modules, service.tmp) != untouched:
            return


def answer(run_one: RunOne, call: Any) -> str:
    """The reply to one call, whatever it does short of ending the process."""
    console = Console()
    sys.stdout = sys.stderr = console
    start = time.perf_counter()
    try:
        results = run_one(call)
    except BaseException as error:
        results = [failure(error)]
    seconds = time.perf_counter() - start
    sys.stdout = sys.stderr = None
    if console.written > CONSOLE_FLOOD:  # also where the code caught it
        results = [{"kind": "too_much_output", "reason": f"printed more than {CONSOLE_FLOOD:,} characters"}]
    return json.dumps({"results": results, "console": console.text(), "seconds": seconds})


def new_module(name: str) -> dict[str, Any]:
    """The names of a fresh module; it is registered, as classes look theirs up there."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = FILE_NAME
    return vars(module)


def _state(modules: list[ModuleType], tmp: str) -> tuple[Any, ...]:
    """What of this process one call could leave behind for another, to be compared."""
    files = os.listdir(tmp) if tmp else []
    lowest_free = os.dup(0)
    os.close(lowest_free)
    names = [dict(vars(module)) for module in modules]
    timer = signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0), signal.getsignal(signal.SIGALRM)
    settings = dict(os.environ), str(decimal.getcontext()), sys.getrecursionlimit(), os.getcwd()
    return names, len(sys.modules), files, lowest_free, timer, settings


def result(value: Any) -> dict[str, Any]:
    """A returned value as total, parts and reason. Raises WrongReturn. Ranges are for the reader to check."""
    if type(value) is not dict:
        return {"total": _number(value, "the return value"), "parts": {}, "reason": ""}
    given = [key for key in TOTAL_KEYS if key in value]
    if len(given) != 1:
        raise WrongReturn("a returned dict has its score under 'total' or 'reward'")
    nested = value.get("parts", {})
    if type(nested) is not dict:
        raise WrongReturn(f"'parts' is a dict of numbers, not {type(nested).__name__}")
    others = {key: part for key, part in value.items() if key not in (given[0], "reason", "parts")}
    parts = {str(key): _number(part, f"part {str(key)[:40]!r}") for key, part in (others | nested).items()}
    if len(parts) > MAX_PARTS:
        raise WrongReturn(f"at most {MAX_PARTS} parts, not {len(parts)}")
    reason = value.get("reason", "")
    return {"total": _number(value[given[0]], f"'{given[0]}'"), "parts": parts, "reason": str(reason)[:MAX_REASON]}


def failure(error: BaseException) -> dict[str, Any]:
    """An exception as kind, reason and details."""
    if isinstance(error, WrongReturn):
        return {"kind": "wrong_return", "reason": error.message}
    if isinstance(error, Missing):
        return {"kind": "missing_function", "reason": f"the code defines no function '{error.name}'"}
    if isinstance(error, MemoryError):
        return {"kind": "out_of_memory", "reason": "the memory limit was reached", "details": _details(error)}
    kind = "syntax" if isinstance(error, SyntaxError) and error.filename == FILE_NAME else "exception"
    try:
        message = str(error)
    except BaseException:
        message = "(its message cannot be shown)"
    reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
    line = _line(error)
    at = f", line {line}" if line else ""
    return {"kind": kind, "reason": reason[: MAX_REASON - 20] + at, "details": _details(error)}


def _result_or_failure(value: Any) -> dict[str, Any]:
    try:
        return result(value)
    except WrongReturn as error:
        return failure(error)


def _number(value: Any, what: str) -> float:
    if type(value) not in (int, float, bool):  # no subclass: it could be anything it likes to be
        raise WrongReturn(f"{what} is a number, not {type(value).__name__}")
    if type(value) is int and abs(value) > 10**300:
        return 1e300 if value > 0 else -1e300
    return float(value)


def _asked_for(function: Callable[..., Any], sample: dict[str, Any]) -> dict[str, Any]:
    """Those of the sample's fields that the function has parameters for."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return sample
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in sample.items() if name in names}


def _await(value: Any) -> Any:
    if not inspect.iscoroutine(value):
        return value
    import asyncio  # preloaded where the code is asynchronous

    return asyncio.run(value)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the stranger's own code."""
    return [frame for frame in traceback.extract_tb(error.__traceback__, limit=-200) if frame.filename == FILE_NAME]


def _line(error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == FILE_NAME:
        return error.lineno
    frames = _frames(error)
    return frames[-1].lineno if frames else None


def _details(error: BaseException) -> str:
    try:
        lines = traceback.format_list(_frames(error)) + traceback.format_exception_only(type(error), error)
        text = "Traceback (most recent call last):\n" + "".join(lines)
    except BaseException:
        return ""
    return text if len(text) <= MAX_DETAILS else text[: MAX_DETAILS // 2] + "\n...\n" + text[-MAX_DETAILS // 2 :]
