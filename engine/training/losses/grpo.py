"""Group-relative policy optimization (GRPO, arXiv 2402.03300).

With the token-level mean and the asymmetric clipping of DAPO (arXiv 2503.14476), which have become its usual form: the
paper's own mean over trajectories makes a token of a long answer count for less.
"""

from __future__ import annotations

from engine.training.losses.algorithm import Algorithm
from engine.training.losses.ratios import clipped_policy_loss

GRPO = Algorithm(clipped_policy_loss)
