"""REINFORCE leave-one-out (RLOO, arXiv 2402.14740): the baseline of an episode is the mean of the others of its group.

In the first update of a batch this is REINFORCE on whole completions: the sum of A * log pi over a trajectory, no
length in the mean. In later updates the ratio is clipped token by token, as in PPO; the ratio of a whole completion, a
product over its tokens, would leave any range as soon as completions are long.
"""

from __future__ import annotations

from engine.training.losses.algorithm import Algorithm
from engine.training.losses.ratios import clipped_policy_loss

RLOO = Algorithm(clipped_policy_loss, mean="constant")
