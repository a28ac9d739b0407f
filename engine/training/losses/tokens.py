"""What a loss takes and gives. T is the number of trained tokens of a pack; every tensor is fp32 of shape [T]."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tokens:
    """The trained tokens of a pack: those the model sampled, in trajectories whose advantage is not 0."""

    logprobs: torch.Tensor
    """Under the policy being trained, at the sampling temperature. Carries the gradient."""
    old_logprobs: torch.Tensor
    """Under the policy before this batch's first optimizer update. With one update a batch: ``logprobs.detach()``."""
    sampler_logprobs: torch.Tensor
    """As the sampler reported them."""
    advantages: torch.Tensor
    """Of the trajectory each token belongs to."""


@dataclass(frozen=True)
class TokenLoss:
    """One loss per token, with diagnostics that do not depend on lengths, padding or packing."""

    loss: torch.Tensor
    """Carries the gradient to ``Tokens.logprobs``."""
    ratio: torch.Tensor
    """Policy ratio, unclipped, detached."""
    clipped: torch.Tensor
    """1 where clipping cut the token's gradient off, else 0."""
    importance: torch.Tensor
    """Truncated importance weight, detached."""
