"""Losses of policy-gradient algorithms, one small file each, over shared pieces (``tokens``, ``ratios``).

A loss maps the trained tokens of a pack to one loss per token, so that the caller alone decides how to sum and
normalise, and micro-batching cannot change a result.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.spec import TrainingSettings
from engine.training.losses.grpo import grpo_loss
from engine.training.losses.tokens import TokenLoss, Tokens

Loss = Callable[[Tokens, TrainingSettings], TokenLoss]

LOSSES: dict[str, Loss] = {"grpo": grpo_loss}
"""By ``TrainingSettings.algorithm``."""

__all__ = ["LOSSES", "Loss", "TokenLoss", "Tokens"]
