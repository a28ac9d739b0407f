"""The GRPO loss on values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from engine.spec import TrainingSettings
from engine.training.losses import TokenLoss, Tokens
from engine.training.losses.grpo import grpo_loss

SETTINGS = TrainingSettings(clip_low=0.2, clip_high=0.28, importance_cap=2.0)


def loss_of(*tokens: tuple[float, float, float, float]) -> tuple[TokenLoss, torch.Tensor]:
    """Tokens as (probability, old probability, sampler's probability, advantage); also the gradient by log-prob."""
    logprobs, old, sampler = (torch.tensor([math.log(token[i]) for token in tokens]) for i in range(3))
    logprobs.requires_grad_()
    result = grpo_loss(Tokens(logprobs, old, sampler, torch.tensor([token[3] for token in tokens])), SETTINGS)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprobs)
    return result, gradient


@pytest.mark.parametrize(
    ("token", "loss", "gradient", "ratio", "clipped", "importance"),
    [
        # on policy: r = 1, w = 1, loss = -A, d loss / d logp = -A
        ((0.5, 0.5, 0.5, 2.0), -2.0, -2.0, 1.0, 0, 1.0),
        # r = 0.6 / 0.5 = 1.2, inside [0.8, 1.28]: loss = -1.2 * 2
        ((0.6, 0.5, 0.5, 2.0), -2.4, -2.4, 1.2, 0, 1.0),
        # r = 1.5 above 1.28 and A > 0: clipped, -1.28 * 2, no gradient
        ((0.75, 0.5, 0.5, 2.0), -2.56, 0.0, 1.5, 1, 1.0),
        # r = 1.5 above 1.28 but A < 0: clipping would raise the objective, so it does not act: -(1.5 * -2)
        ((0.75, 0.5, 0.5, -2.0), 3.0, 3.0, 1.5, 0, 1.0),
        # r = 0.5 below 0.8 and A < 0: clipped, -(0.8 * -2), no gradient
        ((0.25, 0.5, 0.5, -2.0), 1.6, 0.0, 0.5, 1, 1.0),
        # r = 0.5 below 0.8 but A > 0: not clipped
        ((0.25, 0.5, 0.5, 2.0), -1.0, -1.0, 0.5, 0, 1.0),
        # w = 0.5 / 0.4 = 1.25
        ((0.5, 0.5, 0.4, 2.0), -2.5, -2.5, 1.0, 0, 1.25),
        # w = 0.5 / 0.1 = 5, truncated to 2
        ((0.5, 0.5, 0.1, 2.0), -4.0, -4.0, 1.0, 0, 2.0),
        # w = 0.25 / 0.5 = 0.5 and r = 1.2
        ((0.3, 0.25, 0.5, 1.0), -0.6, -0.6, 1.2, 0, 0.5),
    ],
)
def test_one_token(token, loss, gradient, ratio, clipped, importance):
    result, slope = loss_of(token)
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert slope.item() == pytest.approx(gradient, rel=1e-5)
    assert result.ratio.item() == pytest.approx(ratio, rel=1e-5)
    assert result.clipped.item() == clipped
    assert result.importance.item() == pytest.approx(importance, rel=1e-5)


def test_tokens_do_not_affect_each_other():
    tokens = [(0.5, 0.5, 0.4, 2.0), (0.75, 0.5, 0.5, 2.0), (0.25, 0.5, 0.5, -1.0)]
    together, gradient = loss_of(*tokens)
    alone = [loss_of(token) for token in tokens]
    assert together.loss.tolist() == [result.loss.item() for result, _ in alone]
    assert gradient.tolist() == [slope.item() for _, slope in alone]


def test_advantage_zero_gives_no_loss_and_no_gradient():
    result, gradient = loss_of((0.3, 0.5, 0.1, 0.0))
    assert result.loss.item() == 0
    assert gradient.item() == 0
