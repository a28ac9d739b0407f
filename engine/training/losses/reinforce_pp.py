"""REINFORCE++ and REINFORCE++-baseline (arXiv 2501.03262): PPO's loss without a critic, advantages normalised over the
whole batch.

They differ in their advantages: ``reinforce_pp`` compares an episode with the whole batch, ``reinforce_pp_baseline``,
which the paper recommends where a prompt is answered several times, with its group. The KL term is a part of the loss,
as for every algorithm here.
"""

from __future__ import annotations

from engine.training.losses.algorithm import Algorithm
from engine.training.losses.ratios import clipped_policy_loss

REINFORCE_PP = Algorithm(clipped_policy_loss)
