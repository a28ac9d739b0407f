"""Which adapter version is a job's result, which versions retention keeps, and how both are said."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from engine.best_version import EvaluationHistory, EvaluationRecord
from engine.events import Notice
from engine.spec import JobSpec
from engine.store import StoreError, load_commit
from engine.types import Commit

log = logging.getLogger(__name__)

KEEP_EVERY = 10
"""Retention: every so many versions one is kept, besides the last three and those somebody needs."""


@dataclass(frozen=True)
class Result:
    """What a job ends with."""

    commit: Commit
    why: str
    """Why it is this version, a sentence with a space before it; empty where it is the last one."""
    notices: list[Notice]
    kept: str
    """What the tenant can have, a sentence."""


def choose_result(spec: JobSpec, evaluations: EvaluationHistory, last: Commit, job_dir: str) -> Result:
    """The best version by the job's evaluations, where the job wants it and there is one; else the last one.

    Args:
        last: the last commit, of step 1 or later.
    """
    kept = f"The adapter of step {last.step} is kept and can be downloaded."
    best = evaluations.best if spec.evaluation.result == "best" else None
    if best is None or best.version is None:
        return Result(last, "", [], kept)
    notices = _compare_with_base(evaluations.base, best)
    if best.version == last.version:
        return Result(last, "", notices, kept)
    try:
        commit = load_commit(job_dir, best.version)
    except StoreError as error:
        log.warning("job %s: its best version cannot be read: %s", spec.job_id, error)
        return Result(last, "", notices, kept)
    of_last = evaluations.last
    compared = (
        f"the last step, {last.step}: {_numbers(of_last)}"
        if of_last is not None and of_last.version == last.version
        else f"the last step, {last.step}, was not evaluated"
    )
    return Result(
        commit,
        f" Step {best.step} did best on the held-out rows ({_numbers(best)}; {compared}) and is the job's result.",
        notices,
        f"The adapter of step {best.step}, the best one, is the job's result and can be downloaded; so can that of "
        f"step {last.step}, the last one.",
    )


def versions_to_keep(spec: JobSpec, last: int, needed: Collection[int], started_from: Collection[int]) -> set[int]:
    """Versions that retention keeps, the last two apart.

    Args:
        needed: those that are being evaluated, and the best one.
        started_from: those that unfinished jobs start from.
    """
    # Batches in the making name versions as old as the staleness allows; a worker may have to load them again.
    drawing = range(last - spec.training.max_staleness, last)
    return {last - 2, *drawing, *needed, *started_from, *range(0, last, KEEP_EVERY)}


def _compare_with_base(base: EvaluationRecord | None, best: EvaluationRecord) -> list[Notice]:
    if base is None or (base.accuracy, base.reward_mean) <= (best.accuracy, best.reward_mean):
        return []
    return [
        Notice(
            level="warning",
            code="base_is_better",
            message=f"The base model without an adapter did better on the held-out rows ({_numbers(base)}) than the "
            f"best version of this job, that of step {best.step} ({_numbers(best)}).",
            hint="Look at what the reward pays for in the completions, lower the learning rate, or train for longer.",
        )
    ]


def _numbers(record: EvaluationRecord) -> str:
    return f"accuracy {record.accuracy:.1%}, mean reward {record.reward_mean:.3f}"
