"""Group-relative policy optimization (GRPO, arXiv 2402.03300), token-level (DAPO, arXiv 2503.14476), no KL term."""

from __future__ import annotations

from engine.spec import TrainingSettings
from engine.training.losses.ratios import clipped_surrogate, importance_weight, policy_ratio
from engine.training.losses.tokens import TokenLoss, Tokens


def grpo_loss(tokens: Tokens, settings: TrainingSettings) -> TokenLoss:
    """-w * min(r * A, clip(r) * A) of each token, r the policy ratio, w the truncated importance weight.

    The batch's loss is the sum over its tokens divided by the number of tokens the model sampled in the whole batch,
    so that every token weighs the same, whatever the length of its trajectory.
    """
    ratio = policy_ratio(tokens.logprobs, tokens.old_logprobs)
    weight = importance_weight(tokens.old_logprobs, tokens.sampler_logprobs, settings.importance_cap)
    objective, clipped = clipped_surrogate(ratio, tokens.advantages, settings.clip_low, settings.clip_high)
    return TokenLoss(loss=-weight * objective, ratio=ratio.detach(), clipped=clipped, importance=weight)
