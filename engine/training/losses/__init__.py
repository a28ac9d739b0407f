"""Losses of policy-gradient algorithms, one small file each, over shared pieces (``tokens``, ``ratios``, ``kl``).

A loss maps trained tokens to one loss per token, so that the caller alone decides how to sum and normalise, and
micro-batching cannot change a result.
"""

from __future__ import annotations

from engine.training.losses.algorithm import Algorithm
from engine.training.losses.tokens import PolicyLoss, TokenLoss, Tokens
from engine.training.losses.total import ALGORITHMS, token_loss

__all__ = ["ALGORITHMS", "Algorithm", "PolicyLoss", "TokenLoss", "Tokens", "token_loss"]
