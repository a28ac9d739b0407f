"""Clipped importance-sampling policy optimization (CISPO, MiniMax-M1, arXiv 2506.13585).

The ratio is capped as a weight, instead of cutting the gradient off where it is out of range: rare tokens that an
update made much more likely go on being trained. No lower bound, as in the paper; the cap as in ScaleRL (arXiv
2510.13786).
"""

from __future__ import annotations

import torch

from engine.spec import TrainingSettings
from engine.training.losses.algorithm import Algorithm
from engine.training.losses.tokens import PolicyLoss, Tokens


def cispo_loss(tokens: Tokens, settings: TrainingSettings) -> PolicyLoss:
    """-min(r, ratio_cap) * A * log pi of each token, r = pi / pi_old without gradient."""
    ratio = torch.exp(tokens.logprobs - tokens.old_logprobs).detach()
    return PolicyLoss(
        loss=-ratio.clamp(max=settings.ratio_cap) * tokens.advantages * tokens.logprobs,
        ratio=ratio,
        clipped_low=torch.zeros_like(ratio),
        clipped_high=(ratio > settings.ratio_cap).to(ratio.dtype),
    )


CISPO = Algorithm(cispo_loss)
