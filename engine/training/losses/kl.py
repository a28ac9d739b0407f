"""KL divergence of the policy from the frozen base, estimated from the sampled tokens. All tensors have shape [T]."""

from __future__ import annotations

from typing import Literal

import torch

MAX_EXPONENT = 20.0
"""Bounds exp in k3, where a policy gave a token next to no probability, to 5e8."""


def kl_penalty(
    logprobs: torch.Tensor, base_logprobs: torch.Tensor, estimator: Literal["k1", "k2", "k3"]
) -> torch.Tensor:
    """Estimate of KL(policy || base) from each token, with the gradient that lowers it.

    With d = log pi - log base (Schulman, "Approximating KL divergence", 2020): k1 = d, unbiased, may be negative;
    k2 = d^2 / 2; k3 = exp(-d) - 1 + d, unbiased, never negative. The gradient of k1 is d log pi, whose mean is 0
    whatever the base is, so k1 acts as a cost in the reward: its gradient is k1 * d log pi (arXiv 2510.01555).
    """
    difference = logprobs - base_logprobs
    if estimator == "k1":
        return difference.detach() * torch.exp(logprobs - logprobs.detach())
    if estimator == "k2":
        return difference.square() / 2
    return torch.exp((-difference).clamp(max=MAX_EXPONENT)) - 1 + difference
