"""GRPO done right (Dr. GRPO, arXiv 2503.20783): no standard deviation in the advantage, no length in the mean.

Both bias GRPO: the one towards prompts that are nearly solved or nearly hopeless, the other towards long wrong answers.
"""

from __future__ import annotations

from engine.training.losses.algorithm import Algorithm
from engine.training.losses.ratios import clipped_policy_loss

DR_GRPO = Algorithm(clipped_policy_loss, mean="constant")
