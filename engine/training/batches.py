"""What a batch must be before anything is computed with it."""

from __future__ import annotations

import math

from engine.training.errors import TrainingError
from engine.types import TrainBatch, Trajectory


def check_batch(batch: TrainBatch, vocab_size: int) -> None:
    """Raise ``TrainingError`` with the first fault of a batch: shapes, token ids, numbers that are not finite.

    Non-finite numbers are refused here because some would otherwise vanish: a sampler log-probability of +inf, say,
    gives its token an importance weight of 0.
    """
    if [len(group.trajectories) for group in batch.groups] != [len(advantages) for advantages in batch.advantages]:
        raise TrainingError("the batch does not hold one advantage for each trajectory")
    _check_ids(batch.probe_ids, vocab_size, "the probe")
    for index, (group, advantages) in enumerate(zip(batch.groups, batch.advantages, strict=True)):
        where = f"group {index} (row {group.row})"
        if not group.prompt_ids:
            raise TrainingError(f"{where} has an empty prompt")
        _check_ids(group.prompt_ids, vocab_size, where)
        if not all(math.isfinite(advantage) for advantage in advantages):
            raise TrainingError(f"{where} has an advantage that is not a finite number")
        for trajectory in group.trajectories:
            _check_trajectory(trajectory, vocab_size, where)


def _check_trajectory(trajectory: Trajectory, vocab_size: int, where: str) -> None:
    if not len(trajectory.token_ids) == len(trajectory.loss_mask) == len(trajectory.logprobs):
        raise TrainingError(f"{where} has a trajectory whose tokens, loss mask and log-probabilities differ in length")
    _check_ids(trajectory.token_ids, vocab_size, where)
    if not all(math.isfinite(logprob) for logprob in trajectory.logprobs):
        raise TrainingError(f"{where} has a log-probability of the sampler that is not a finite number")


def _check_ids(token_ids: list[int], vocab_size: int, where: str) -> None:
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise TrainingError(f"{where} has a token id outside the vocabulary of {vocab_size}")
