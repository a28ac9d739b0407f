"""The loss of a token under any algorithm: off-policy correction and KL term are the same for all."""

from __future__ import annotations

from engine.spec import TrainingSettings
from engine.training.losses.algorithm import Algorithm
from engine.training.losses.cispo import CISPO
from engine.training.losses.dapo import DAPO
from engine.training.losses.dr_grpo import DR_GRPO
from engine.training.losses.grpo import GRPO
from engine.training.losses.gspo import GSPO
from engine.training.losses.kl import kl_penalty
from engine.training.losses.ratios import importance_weight
from engine.training.losses.reinforce_pp import REINFORCE_PP
from engine.training.losses.rloo import RLOO
from engine.training.losses.tokens import TokenLoss, Tokens

ALGORITHMS: dict[str, Algorithm] = {
    "grpo": GRPO,
    "dr_grpo": DR_GRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "rloo": RLOO,
    "reinforce_pp": REINFORCE_PP,
    "reinforce_pp_baseline": REINFORCE_PP,
}
"""By ``TrainingSettings.algorithm``."""


def token_loss(tokens: Tokens, settings: TrainingSettings) -> TokenLoss:
    """w * (policy loss + kl_coefficient * KL penalty) of each token, w the importance weight.

    Both parts are means over the policy's own tokens, so both are corrected for the sampler that drew them.
    """
    policy = ALGORITHMS[settings.algorithm].loss(tokens, settings)
    weight, out_of_bounds = importance_weight(tokens.old_logprobs, tokens.sampler_logprobs, settings)
    loss, kl = policy.loss, None
    if tokens.base_logprobs is not None:
        penalty = kl_penalty(tokens.logprobs, tokens.base_logprobs, settings.kl_estimator)
        loss, kl = loss + settings.kl_coefficient * penalty, penalty.detach()
    return TokenLoss(weight * loss, policy, weight, out_of_bounds, kl)
