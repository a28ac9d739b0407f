"""Decoupled clip and dynamic sampling policy optimization (DAPO, arXiv 2503.14476).

Its loss is the token-level mean with clip-higher; what sets it apart from ``grpo`` here lies before the loss: rewards
with a soft punishment of length (``TrainingSettings.overlong_buffer``) and groups without signal replaced
(``TrainingSettings.max_sampling_rounds``).
"""

from __future__ import annotations

from engine.training.losses.algorithm import Algorithm
from engine.training.losses.ratios import clipped_policy_loss

DAPO = Algorithm(clipped_policy_loss)
