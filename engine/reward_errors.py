"""Episodes whose reward, or environment, failed: what is trained of a batch, when they are too many, and the first ones
in full.

Invariants: where failed episodes are dropped, a group's advantages are those of a group of the others alone; a batch
that is drawn again after a restart is neither reported nor counted twice.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from engine.events import RewardError
from engine.spec import JobSpec
from engine.training.advantages import advantages_of
from engine.types import Group, Trajectory

REPORTED = 5
"""So many errors of a job are reported in full."""
SHOWN_CHARACTERS = 20_000
"""Of a completion, its traceback, or what was printed."""


@dataclass(frozen=True)
class Judged:
    """What a drawn batch is worth."""

    groups: list[Group]
    """Those that may be trained, each with the episodes that may."""
    advantages: list[list[float]]
    """Theirs: [group][episode]."""
    shown: list[list[float]]
    """[group][episode] of the batch as drawn: 0 where an episode is not trained."""

    @property
    def has_signal(self) -> bool:
        return any(advantage for group in self.advantages for advantage in group)


def scored(spec: JobSpec, group: Group) -> Group:
    """A group without the episodes that the job's policy drops; where fewer than 2 are left, without any."""
    if spec.reward_errors.mode != "drop_episode":
        return group
    left = [trajectory for trajectory in group.trajectories if not trajectory.score.error]
    return dataclasses.replace(group, trajectories=left if len(left) >= 2 else [])


def judge(spec: JobSpec, drawn: list[Group]) -> Judged:
    """What may be trained of a batch, with its advantages."""
    left = [scored(spec, group) for group in drawn]
    groups = [group for group in left if group.trajectories]
    advantages = advantages_of(spec, groups)
    of_groups = iter(advantages)
    shown = []
    for whole, rest in zip(drawn, left, strict=True):
        of_rest = iter(next(of_groups) if rest.trajectories else [])
        trained = {id(trajectory) for trajectory in rest.trajectories}
        shown.append([next(of_rest) if id(trajectory) in trained else 0.0 for trajectory in whole.trajectories])
    return Judged(groups, advantages, shown)


def describe_loss(drawn: list[Group]) -> str:
    """Why nothing of a batch can be trained where failed episodes are dropped."""
    episodes = [trajectory for group in drawn for trajectory in group.trajectories]
    errors = [trajectory.score.reason for trajectory in episodes if trajectory.score.error]
    return (
        f"The reward failed on {len(errors)} of {len(episodes)} completions, which leaves no prompt with two that were "
        f"scored: {errors[0].rstrip('.')}."
    )


class _State(BaseModel):
    reported: int = 0
    cursor: int = 0
    """The job's data cursor after the newest batch seen."""
    window: list[tuple[int, int, int]] = []
    """(cursor, errors, episodes) of the last batches."""


class RewardErrors:
    """One job's. Keep its state with what it reports."""

    def __init__(self, spec: JobSpec) -> None:
        self._policy = spec.reward_errors
        self._state = _State()

    def observe_batch(self, step: int, cursor: int, groups: list[Group]) -> list[RewardError]:
        """Look at a batch drawn for ``step``; ``cursor`` is the job's after it."""
        state = self._state
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        errors = sum(trajectory.score.error for trajectory in episodes)
        others = [entry for entry in state.window if entry[0] != cursor]
        state.window = [*others, (cursor, errors, len(episodes))][-self._policy.window_batches :]
        if cursor <= state.cursor:
            return []
        state.cursor = cursor
        return self._first(step, groups)

    def observe_evaluation(self, step: int, groups: list[Group]) -> list[RewardError]:
        """Look at the evaluation of a step's version, or of the base (step 0). It does not count against the limit."""
        return self._first(step, groups, evaluation=True)

    @property
    def too_many(self) -> str:
        """Why the job has to fail, in words; empty where it need not."""
        errors = sum(entry[1] for entry in self._state.window)
        episodes = sum(entry[2] for entry in self._state.window)
        allowed = self._policy.allowed_fraction
        if not errors or errors <= allowed * episodes:
            return ""
        batches = len(self._state.window)
        where = f"the last {batches} batches" if batches > 1 else "the last batch"
        limit = f"more than the {allowed:.0%} this job allows" if allowed else "and this job allows no error"
        return f"The reward failed on {errors} of {episodes} completions ({errors / episodes:.0%}) of {where}, {limit}."

    def state(self) -> dict[str, Any]:
        """Everything known, as JSON."""
        return self._state.model_dump(mode="json")

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` gave; from ``{}``, begin anew."""
        self._state = _State.model_validate(state)

    def _first(self, step: int, groups: list[Group], evaluation: bool = False) -> list[RewardError]:
        failed = [(group.row, one) for group in groups for one in group.trajectories if one.score.error]
        new = failed[: REPORTED - self._state.reported]
        self._state.reported += len(new)
        return [_event(step, row, trajectory, evaluation) for row, trajectory in new]


def _event(step: int, row: int, trajectory: Trajectory, evaluation: bool) -> RewardError:
    score = trajectory.score
    return RewardError(
        step=step,
        row=row,
        evaluation=evaluation,
        completion=trajectory.text[:SHOWN_CHARACTERS],
        kind=score.error_kind,
        reason=score.reason,
        details=score.details[:SHOWN_CHARACTERS],
        console=score.console[:SHOWN_CHARACTERS],
    )
