"""From rewards to advantages. Pure Python.

Invariant: a group whose rewards are all equal has advantages of exactly 0 under every algorithm but ``reinforce_pp``,
the only one that compares episodes of different prompts. It is tested by range, since a mean that rounds would leave a
tiny advantage that a division by the standard deviation blows up. Rewards must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from engine.spec import JobSpec, TrainingSettings
from engine.types import Group

EPSILON = 1e-4
"""Added to the standard deviation, in units of reward."""

Rewards = list[list[float]]
"""[group][episode]"""


def advantages_of(spec: JobSpec, groups: list[Group]) -> list[list[float]]:
    """Advantages of a whole batch, [group][trajectory], from its rewards shaped by length."""
    return batch_advantages(spec.training, [shaped_rewards(spec, group) for group in groups])


def has_signal(spec: JobSpec, group: Group) -> bool:
    """Whether a group's shaped rewards differ: what dynamic sampling (DAPO, arXiv 2503.14476) keeps."""
    return _differ(shaped_rewards(spec, group))


def batch_advantages(settings: TrainingSettings, rewards: Rewards) -> list[list[float]]:
    """Advantages [group][episode] of a whole batch under the settings' algorithm."""
    return _ADVANTAGES[settings.algorithm](rewards)


def shaped_rewards(spec: JobSpec, group: Group) -> list[float]:
    """What a group's episodes are trained on: their rewards less the punishment of overlong ones."""
    limit = spec.sampling.max_tokens
    buffer = spec.training.overlong_tokens(limit)
    return [
        trajectory.score.total - overlong_penalty(sum(trajectory.loss_mask), limit, buffer)
        for trajectory in group.trajectories
    ]


def overlong_penalty(tokens: int, max_tokens: int, buffer: int) -> float:
    """DAPO's soft overlong punishment: from 0 at ``max_tokens - buffer`` linearly to 1 at ``max_tokens`` and beyond.

    >>> [overlong_penalty(tokens, 100, 20) for tokens in (50, 80, 85, 100, 300)]
    [0.0, 0.0, 0.25, 1.0, 1.0]
    """
    if buffer == 0:
        return 0.0
    return min(1.0, max(0.0, (tokens - (max_tokens - buffer)) / buffer))


def group_advantages(rewards: list[float]) -> list[float]:
    """(reward - mean) / (std + EPSILON) within one group, std being the population's (GRPO, arXiv 2402.03300).

    >>> group_advantages([1.0, 1.0, 1.0])
    [0.0, 0.0, 0.0]
    """
    if not _differ(rewards):
        return [0.0] * len(rewards)
    mean = _mean(rewards)
    std = _std(rewards, mean)
    return [(reward - mean) / (std + EPSILON) for reward in rewards]


def centred_advantages(rewards: list[float]) -> list[float]:
    """reward - mean within one group (Dr. GRPO, arXiv 2503.20783).

    >>> centred_advantages([1.0, 0.0, 0.0, 0.0])
    [0.75, -0.25, -0.25, -0.25]
    """
    if not _differ(rewards):
        return [0.0] * len(rewards)
    mean = _mean(rewards)
    return [reward - mean for reward in rewards]


def leave_one_out_advantages(rewards: list[float]) -> list[float]:
    """reward - mean of the other rewards of the group (RLOO, arXiv 2402.14740).

    >>> leave_one_out_advantages([1.0, 0.0, 0.5])
    [0.75, -0.75, 0.0]
    """
    if not _differ(rewards):
        return [0.0] * len(rewards)
    total = math.fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]


def batch_normalised_advantages(rewards: Rewards) -> list[list[float]]:
    """(reward - mean) / (std + EPSILON) over the whole batch, every episode counting once (REINFORCE++).

    A batch whose rewards are all equal gives exactly 0.
    """
    flat = [reward for group in rewards for reward in group]
    if not _differ(flat):
        return [[0.0] * len(group) for group in rewards]
    mean = _mean(flat)
    std = _std(flat, mean)
    return [[(reward - mean) / (std + EPSILON) for reward in group] for group in rewards]


def batch_scaled_advantages(rewards: Rewards) -> list[list[float]]:
    """(reward - mean of the group) / (std + EPSILON), std that of all centred rewards (REINFORCE++-baseline).

    Their mean over the batch is 0 by construction, so it is not subtracted: that would only round exact zeros.
    """
    centred = [centred_advantages(group) for group in rewards]
    std = _std([advantage for group in centred for advantage in group], 0.0)
    return [[advantage / (std + EPSILON) for advantage in group] for group in centred]


def _by_group(advantages: Callable[[list[float]], list[float]]) -> Callable[[Rewards], list[list[float]]]:
    return lambda rewards: [advantages(group) for group in rewards]


_ADVANTAGES: dict[str, Callable[[Rewards], list[list[float]]]] = {
    "grpo": _by_group(group_advantages),
    "dr_grpo": _by_group(centred_advantages),
    "dapo": _by_group(group_advantages),
    "gspo": _by_group(group_advantages),
    "cispo": _by_group(group_advantages),
    "rloo": _by_group(leave_one_out_advantages),
    "reinforce_pp": batch_normalised_advantages,
    "reinforce_pp_baseline": batch_scaled_advantages,
}


def _differ(rewards: list[float]) -> bool:
    return bool(rewards) and max(rewards) != min(rewards)


def _mean(rewards: list[float]) -> float:
    return math.fsum(rewards) / len(rewards)


def _std(values: Iterable[float], mean: float) -> float:
    """Of the population; 0 without values."""
    squares = [(value - mean) ** 2 for value in values]
    return math.sqrt(math.fsum(squares) / max(1, len(squares)))
