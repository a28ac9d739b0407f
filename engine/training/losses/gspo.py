"""Group sequence policy optimization (GSPO, arXiv 2507.18071): one ratio, and one clipping, for a whole trajectory."""

from __future__ import annotations

import torch

from engine.spec import TrainingSettings
from engine.training.losses.algorithm import Algorithm
from engine.training.losses.ratios import clipped_surrogate
from engine.training.losses.tokens import PolicyLoss, Tokens


def gspo_loss(tokens: Tokens, settings: TrainingSettings) -> PolicyLoss:
    """-min(s * A, clip(s) * A), s = exp(mean over the trajectory's tokens of log pi - log pi_old).

    In the paper's token-wise form: every token has the value s, and its gradient is s * A * d log pi. Averaged over
    the trajectory that is the gradient of the sequence's own objective, so tokens can be computed in any pieces.
    """
    assert tokens.sequence_log_ratios is not None
    ratio = torch.exp(tokens.sequence_log_ratios + (tokens.logprobs - tokens.logprobs.detach()))
    return clipped_surrogate(ratio, tokens.advantages, settings.sequence_clip_low, settings.sequence_clip_high)


GSPO = Algorithm(gspo_loss, mean="trajectories", sequence_ratio=True)
