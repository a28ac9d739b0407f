"""The ratios of off-policy correction, per token. All tensors have shape [T].

A token drawn by an older adapter version, or by a sampler that rounds otherwise, is corrected once, by the importance
weight pi_old / pi_sampler; what the policy moves within a batch is the policy ratio pi / pi_old, and only that is
clipped. So a stale batch starts at a policy ratio of 1 like any other ("decoupled" PPO: arXiv 2110.00641, AReaL
arXiv 2505.24298).
"""

from __future__ import annotations

import torch

from engine.spec import TrainingSettings
from engine.training.losses.tokens import PolicyLoss, Tokens


def importance_weight(
    old_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, settings: TrainingSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """exp(old - sampler), bounded and detached, and where the bound acted (0 or 1).

    ``truncate``: min(weight, cap), after Ionides 2008; for language models "Your Efficient RL Framework Secretly Brings
    You Off-Policy RL Training" (Yao et al. 2025). ``mask``: 0 outside [floor, cap], as in IcePop (Ring-1T, arXiv
    2510.18855).
    """
    weight = torch.exp(old_logprobs - sampler_logprobs).detach()
    out_of_bounds = weight > settings.importance_cap
    if settings.importance == "mask":
        out_of_bounds |= weight < settings.importance_floor
        weight = weight.masked_fill(out_of_bounds, 0.0)
    else:
        weight = weight.clamp(max=settings.importance_cap)
    return weight, out_of_bounds.to(weight.dtype)


def clipped_policy_loss(tokens: Tokens, settings: TrainingSettings) -> PolicyLoss:
    """-min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A) of each token, r = pi / pi_old its policy ratio."""
    ratio = torch.exp(tokens.logprobs - tokens.old_logprobs)
    return clipped_surrogate(ratio, tokens.advantages, settings.clip_low, settings.clip_high)


def clipped_surrogate(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> PolicyLoss:
    """PPO's pessimistic objective with an asymmetric range, negated.

    Clipping acts only where it lowers the objective: above the range for A > 0, below it for A < 0; there the token
    has no gradient. PPO: arXiv 1707.06347; the asymmetric range ("clip-higher"): DAPO, arXiv 2503.14476.
    """
    unclipped = ratio * advantages
    bounded = ratio.clamp(1 - low, 1 + high) * advantages
    clipped = (bounded < unclipped).detach()
    return PolicyLoss(
        loss=-torch.minimum(unclipped, bounded),
        ratio=ratio.detach(),
        clipped_low=(clipped & (advantages < 0)).to(ratio.dtype),
        clipped_high=(clipped & (advantages > 0)).to(ratio.dtype),
    )
