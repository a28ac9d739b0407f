"""From what a worker answers to scores.

Invariant: nothing of a reply is believed beyond what it says of its own samples: JSON alone, sizes, types and ranges
checked here, in the engine. A function that lies can only lie about its own score.
"""

from __future__ import annotations

import json
import math
import re
import signal
from dataclasses import replace
from typing import Any, get_args

from engine.sandbox.inside.calls import MAX_CONSOLE, MAX_DETAILS, MAX_PARTS, MAX_REASON
from engine.sandbox.inside.worker import MAX_REPLY
from engine.spec import CodeTests, Python
from engine.types import ErrorKind, Score

PART_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ .-]{0,39}")
PROGRAM_ERRORS = ("grader", "refused")
"""Errors in grading a program that are not the program's own."""
MARGIN = 64
"""Characters that a shortened text may have beyond its limit, for the note that it was."""


class Wrong(ValueError):
    """A reply that is none."""


def error(kind: ErrorKind, reason: str, details: str = "") -> Score:
    return Score(0.0, reason=reason, error=True, error_kind=kind, details=details)


def read_answer(grader: Python | CodeTests, answer: dict[str, Any], samples: int, timeout: float) -> list[Score]:
    """The scores of one call, of ``samples`` samples.

    Where the call failed as a whole each of them gets the error; what was printed goes with the first.
    """
    scores = _scores(answer, samples, timeout)
    if isinstance(grader, CodeTests):
        scores = [_program_score(score) for score in scores]
    return scores


def _scores(answer: dict[str, Any], samples: int, timeout: float) -> list[Score]:
    return [replace(score, seconds=score.seconds or answer["seconds"]) for score in _believed(answer, samples, timeout)]


def _believed(answer: dict[str, Any], samples: int, timeout: float) -> list[Score]:
    match answer["ended"]:
        case "timed_out":
            return [error("timed_out", f"timed out after {timeout:g} s and was stopped")] * samples
        case "too_much_output":
            return [error("too_much_output", f"answered more than {MAX_REPLY:,} bytes")] * samples
        case "died":
            return [error("killed", _death(int(answer["code"])))] * samples
    try:
        reply = json.loads(answer["reply"])
        results, console, seconds = _fields(reply, timeout)
        if len(results) == 1 and samples > 1:
            results = results * samples
        if len(results) != samples:
            raise Wrong(f"{len(results)} results for {samples} samples")
        scores = [_score(result) for result in results]
    except (ValueError, RecursionError) as wrong:
        why = str(wrong)[:200] if isinstance(wrong, Wrong) else "it is not the JSON that was expected"
        return [error("wrong_return", f"the reply was tampered with: {why}")] * samples
    scores = [replace(score, seconds=seconds) for score in scores]
    return [replace(scores[0], console=console), *scores[1:]]


def _fields(reply: Any, timeout: float) -> tuple[list[Any], str, float]:
    """Results, console and the function's own time, 0 where it is not to be believed."""
    if type(reply) is not dict or type(reply.get("results")) is not list or not reply["results"]:
        raise Wrong("it has no results")
    own = reply.get("seconds")
    seconds = own if isinstance(own, float) and 0 <= own <= timeout else 0.0
    return reply["results"], _text(reply, "console", MAX_CONSOLE), seconds


def _score(result: Any) -> Score:
    if type(result) is not dict:
        raise Wrong("a result is no object")
    reason = _text(result, "reason", MAX_REASON)
    if "kind" in result:
        if result["kind"] not in get_args(ErrorKind) or not result["kind"]:
            raise Wrong("it names an unknown kind of error")
        return error(result["kind"], reason, _text(result, "details", MAX_DETAILS))
    parts = result.get("parts", {})
    if type(parts) is not dict or len(parts) > MAX_PARTS:
        raise Wrong(f"its parts are no object of at most {MAX_PARTS} members")
    for name in parts:
        if not PART_NAME.fullmatch(name):
            what = "letters, digits, spaces and _ . - (at most 40), beginning with a letter"
            return error("wrong_return", f"{name[:60]!r} cannot be the name of a part; use {what}")
    numbers = {"the score": _number(result.get("total"))} | {
        f"part {name!r}": _number(value) for name, value in parts.items()
    }
    for name, number in numbers.items():
        if not math.isfinite(number):
            return error("not_finite", f"{name} is {number}")
    total = numbers["the score"]
    if not 0 <= total <= 1:
        return error("out_of_range", f"the score is {total:g}; it must be within 0 and 1")
    return Score(total, {name: float(value) for name, value in parts.items()}, reason)


def _program_score(score: Score) -> Score:
    """A program that fails in whatever way is a wrong answer, not a broken reward."""
    if not score.error or score.error_kind in PROGRAM_ERRORS:
        return score
    return Score(0.0, reason=f"the program failed: {score.reason}", details=score.details, console=score.console)


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise Wrong("a score is no number")
    if abs(value) > 1e300 and type(value) is int:
        return math.inf if value > 0 else -math.inf
    return float(value)


def _text(fields: dict[str, Any], name: str, limit: int) -> str:
    value = fields.get(name, "")
    if type(value) is not str:
        raise Wrong(f"its {name} is no text")
    # Half of a surrogate pair is valid JSON, but nothing that can be stored.
    return value[: limit + MARGIN].encode(errors="replace").decode()


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "the process was killed before it had answered"
    if code < 0:
        return f"the process crashed ({signal.Signals(-code).name}) before it had answered"
    return f"the process ended before it had answered (exit code {code})"
