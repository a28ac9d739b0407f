"""The grading process: ``python -m engine.rewards.worker PARENT_PID``, JSON lines over stdin and stdout.

A request is ``{"graders": [JSON text, ...], "sample": {"row": {...}, "completion": str, "turns": [...]}}``. Two lines
answer it: ``{"started": true}`` once all code it needs is loaded, which is when its time limit begins, and then
``{"scores": [...]}``, the fields of ``engine.types.Score`` for each grader. Requests are answered in order.

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
import traceback
from functools import lru_cache
from typing import Annotated, Any, BinaryIO

from pydantic import Field, TypeAdapter

from engine.rewards.graders import grade, preload
from engine.spec import DatasetRow, DeclarativeGrader, Turn
from engine.types import Sample, Score

MAX_REASON = 2000
MAX_DETAILS = 4000
MEMORY_BYTES = 2 * 1024**3
PR_SET_PDEATHSIG = 1


def main() -> None:
    _confine(parent=int(sys.argv[1]))
    requests, responses = _protocol_streams()
    for line in requests:
        request = json.loads(line)
        graders = [_grader(text) for text in request["graders"]]
        _send(responses, {"started": True})
        sample = _sample(request["sample"])
        _send(responses, {"scores": [dataclasses.asdict(_score(grader, sample)) for grader in graders]})


def _sample(data: dict[str, Any]) -> Sample:
    turns = [Turn.model_validate(turn) for turn in data["turns"]]
    return Sample(DatasetRow.model_validate(data["row"]), data["completion"], turns)


def _score(grader: DeclarativeGrader, sample: Sample) -> Score:
    start = time.perf_counter()
    try:
        score = grade(grader, sample)
    except MemoryError:
        reason = f"the grader needs more than {MEMORY_BYTES // 1024**3} GiB of memory"
        score = Score(0.0, reason=reason, error=True, error_kind="out_of_memory")
    except Exception as error:
        score = Score(
            0.0,
            reason=f"the grader failed: {type(error).__name__}: {str(error)[:200]}",
            error=True,
            error_kind="grader",
            details=traceback.format_exc(limit=-5)[-MAX_DETAILS:],
        )
    return dataclasses.replace(score, reason=score.reason[:MAX_REASON], seconds=time.perf_counter() - start)


@lru_cache(maxsize=256)
def _grader(text: str) -> DeclarativeGrader:
    """The grader of a JSON text, with the modules it needs imported."""
    grader: DeclarativeGrader = _DECLARATIVE.validate_json(text)
    preload(grader)
    return grader


_DECLARATIVE: TypeAdapter[DeclarativeGrader] = TypeAdapter(Annotated[DeclarativeGrader, Field(discriminator="type")])


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
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy would set memory aside for a thread on each core
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)


if __name__ == "__main__":
    main()
