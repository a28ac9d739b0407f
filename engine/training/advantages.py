"""Group-relative advantages (GRPO, arXiv 2402.03300). Pure Python."""

from __future__ import annotations

import math

EPSILON = 1e-4
"""Added to the standard deviation, in units of reward."""


def group_advantages(rewards: list[float]) -> list[float]:
    """(reward - mean) / (std + EPSILON) within one group, std being the population's.

    A group whose rewards are all equal gives exactly 0 for each: tested by range, since a mean that rounds would leave
    a tiny advantage that the division blows up. Rewards must be finite.

    >>> group_advantages([1.0, 1.0, 1.0])
    [0.0, 0.0, 0.0]
    """
    if not rewards or max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (std + EPSILON) for reward in rewards]
