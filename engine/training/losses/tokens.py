"""What a loss takes and gives. T is the number of trained tokens; every tensor is fp32 of shape [T]."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tokens:
    """The trained tokens of a pack, or of a part of one: those the model sampled, in the trajectories that count."""

    logprobs: torch.Tensor
    """Under the policy being trained, at the sampling temperature. Carries the gradient."""
    old_logprobs: torch.Tensor
    """Under the policy before this batch's first optimizer update. In that update: ``logprobs.detach()``."""
    sampler_logprobs: torch.Tensor
    """As the sampler reported them, under whichever adapter version drew each token."""
    advantages: torch.Tensor
    """Of the trajectory each token belongs to."""
    sequence_log_ratios: torch.Tensor | None = None
    """Mean over a trajectory's trained tokens of ``logprobs - old_logprobs``, detached, given to each of its tokens.
    The mean, not the sum: a sum grows with the length. Only where ``Algorithm.sequence_ratio``."""
    base_logprobs: torch.Tensor | None = None
    """Under the base without adapter. Only where there is a KL term."""


@dataclass(frozen=True)
class PolicyLoss:
    """What an algorithm makes of its tokens, before off-policy correction."""

    loss: torch.Tensor
    """Carries the gradient to ``Tokens.logprobs``."""
    ratio: torch.Tensor
    """Policy ratio, unclipped, detached."""
    clipped_low: torch.Tensor
    """1 where the ratio was bounded from below, with effect, else 0."""
    clipped_high: torch.Tensor
    """1 where the ratio was bounded from above, with effect, else 0."""


@dataclass(frozen=True)
class TokenLoss:
    """One loss per token, with diagnostics that do not depend on lengths, padding or packing."""

    loss: torch.Tensor
    """importance * (policy.loss + kl_coefficient * KL penalty). Carries the gradient to ``Tokens.logprobs``."""
    policy: PolicyLoss
    importance: torch.Tensor
    """Trainer-to-sampler importance weight, bounded, detached."""
    out_of_bounds: torch.Tensor
    """1 where that weight was truncated or masked, else 0."""
    kl: torch.Tensor | None
    """Estimate of the divergence from the base, detached. None without a KL term."""
