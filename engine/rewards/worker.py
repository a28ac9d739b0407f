"""The grading process: ``python -m engine.rewards.worker PARENT_PID``, JSON lines over stdin and stdout.

A request is ``{"grader": ..., "completion": str, "row": {...}}``. Two lines answer it: ``{"started": true}`` once all
code it needs is loaded, which is when its time limit begins, and then the score, ``{"total": float, "parts": {...},
"reason": str, "error": bool, "seconds": float}``. Requests are answered in order.

Invariants: the process dies with its parent, has no secrets in its environment, cannot grow beyond its memory limit,
and whatever a grader prints or raises cannot break the protocol. It is not a sandbox for hostile code.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import resource
import signal
import sys
import time
from functools import lru_cache
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from engine.rewards.graders import grade
from engine.spec import DatasetRow, Grader, Maths, Mix, ReasoningGymScore
from engine.types import Score

MAX_REASON = 2000
MEMORY_BYTES = 2 * 1024**3
PR_SET_PDEATHSIG = 1


def main() -> None:
    _confine(parent=int(sys.argv[1]))
    requests, responses = _protocol_streams()
    for line in requests:
        request = json.loads(line)
        grader = _grader(request["grader"])
        _send(responses, {"started": True})
        _send(responses, dataclasses.asdict(_score(grader, request)))


def _score(grader: Grader, request: dict[str, Any]) -> Score:
    start = time.perf_counter()
    try:
        score = grade(grader, request["completion"], DatasetRow.model_validate(request["row"]))
    except Exception as error:
        score = Score(0.0, reason=f"the grader failed: {type(error).__name__}: {str(error)[:200]}", error=True)
    return dataclasses.replace(score, reason=score.reason[:MAX_REASON], seconds=time.perf_counter() - start)


@lru_cache(maxsize=256)
def _grader(text: str) -> Grader:
    """The grader of a JSON text, with the modules it needs imported."""
    grader: Grader = TypeAdapter(Grader).validate_json(text)
    simple = [part.grader for part in grader.parts] if isinstance(grader, Mix) else [grader]
    if any(isinstance(one, Maths) for one in simple):
        import engine.rewards.maths  # noqa: F401
    if any(isinstance(one, ReasoningGymScore) for one in simple):
        import reasoning_gym  # noqa: F401
    return grader


def _send(responses: BinaryIO, message: dict[str, Any]) -> None:
    responses.write(json.dumps(message).encode() + b"\n")
    responses.flush()


def _protocol_streams() -> tuple[BinaryIO, BinaryIO]:
    """Streams of the protocol on descriptors of their own; stdin and stdout then lead nowhere."""
    streams = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return streams


def _confine(parent: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)


if __name__ == "__main__":
    main()
