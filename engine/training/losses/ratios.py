"""The two ratios of off-policy correction, per token. All tensors have shape [T]."""

from __future__ import annotations

import torch


def policy_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """exp(logprobs - old_logprobs): how far the policy moved within this batch. Carries the gradient."""
    return torch.exp(logprobs - old_logprobs)


def importance_weight(old_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, cap: float) -> torch.Tensor:
    """min(exp(old - sampler), cap), detached: corrects for tokens drawn by another policy than the trainer's.

    The sampler differs by its arithmetic (another kernel, bf16) and by its age (an earlier adapter version). Truncated
    importance sampling: Ionides 2008; for language models "Your Efficient RL Framework Secretly Brings You Off-Policy
    RL Training" (Yao et al. 2025).
    """
    return torch.exp(old_logprobs - sampler_logprobs).clamp(max=cap).detach()


def clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's pessimistic objective min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A), and where it clipped.

    Clipping acts only where it lowers the objective: above the range for A > 0, below it for A < 0. Returns
    (objective, clipped as 0 or 1). PPO: arXiv 1707.06347; the asymmetric range: DAPO, arXiv 2503.14476.
    """
    unclipped = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return torch.minimum(unclipped, bounded), (bounded < unclipped).detach().to(ratio.dtype)
