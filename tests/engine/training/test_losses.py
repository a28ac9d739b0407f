"""The losses on values worked out by hand.

A token is (probability, old probability, sampler's probability, advantage).
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.spec import TrainingSettings
from engine.training.losses import ALGORITHMS, TokenLoss, Tokens, token_loss
from engine.training.losses.kl import kl_penalty

Token = tuple[float, float, float, float]


def loss_of(
    *tokens: Token, lengths: list[int] | None = None, base: list[float] | None = None, **settings: Any
) -> tuple[TokenLoss, torch.Tensor]:
    """The loss and its gradient by log-probability; ``lengths``: of trajectories, for a sequence ratio."""
    logprobs, old, sampler = (torch.tensor([math.log(token[i]) for token in tokens]) for i in range(3))
    ratios = None
    if lengths is not None:
        means = [piece.mean() for piece in (logprobs - old).split(lengths)]
        ratios = torch.stack(means).repeat_interleave(torch.tensor(lengths))
    logprobs.requires_grad_()
    result = token_loss(
        Tokens(
            logprobs=logprobs,
            old_logprobs=old,
            sampler_logprobs=sampler,
            advantages=torch.tensor([token[3] for token in tokens]),
            sequence_log_ratios=ratios,
            base_logprobs=None if base is None else torch.tensor(base).log(),
        ),
        TrainingSettings(**settings),
    )
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprobs)
    return result, gradient


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize(
    ("token", "loss", "gradient", "ratio", "clipped", "importance"),
    [
        # on policy: r = 1, w = 1, loss = -A, d loss / d logp = -A
        ((0.5, 0.5, 0.5, 2.0), -2.0, -2.0, 1.0, (0, 0), 1.0),
        # r = 0.6 / 0.5 = 1.2, inside [0.8, 1.28]: loss = -1.2 * 2
        ((0.6, 0.5, 0.5, 2.0), -2.4, -2.4, 1.2, (0, 0), 1.0),
        # r = 1.5 above 1.28 and A > 0: clipped, -1.28 * 2, no gradient
        ((0.75, 0.5, 0.5, 2.0), -2.56, 0.0, 1.5, (0, 1), 1.0),
        # r = 1.5 above 1.28 but A < 0: clipping would raise the objective, so it does not act: -(1.5 * -2)
        ((0.75, 0.5, 0.5, -2.0), 3.0, 3.0, 1.5, (0, 0), 1.0),
        # r = 0.5 below 0.8 and A < 0: clipped, -(0.8 * -2), no gradient
        ((0.25, 0.5, 0.5, -2.0), 1.6, 0.0, 0.5, (1, 0), 1.0),
        # r = 0.5 below 0.8 but A > 0: not clipped
        ((0.25, 0.5, 0.5, 2.0), -1.0, -1.0, 0.5, (0, 0), 1.0),
        # w = 0.5 / 0.4 = 1.25
        ((0.5, 0.5, 0.4, 2.0), -2.5, -2.5, 1.0, (0, 0), 1.25),
        # w = 0.5 / 0.1 = 5, truncated to 2
        ((0.5, 0.5, 0.1, 2.0), -4.0, -4.0, 1.0, (0, 0), 2.0),
        # w = 0.25 / 0.5 = 0.5 and r = 1.2
        ((0.3, 0.25, 0.5, 1.0), -0.6, -0.6, 1.2, (0, 0), 0.5),
    ],
)
def test_the_clipped_loss_of_one_token(algorithm, token, loss, gradient, ratio, clipped, importance):
    result, slope = loss_of(token, algorithm=algorithm)
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert slope.item() == pytest.approx(gradient, rel=1e-5)
    assert result.policy.ratio.item() == pytest.approx(ratio, rel=1e-5)
    assert (result.policy.clipped_low.item(), result.policy.clipped_high.item()) == clipped
    assert result.importance.item() == pytest.approx(importance, rel=1e-5)
    assert result.kl is None


@pytest.mark.parametrize(
    ("token", "loss", "gradient", "clipped"),
    [
        # r = 1: -1 * 2 * ln 0.5 = 1.3863, and d / d logp = -2
        ((0.5, 0.5, 0.5, 2.0), 1.386294, -2.0, 0),
        # r = 3, below the cap of 5: the gradient is there, where PPO would have cut it off
        ((0.6, 0.2, 0.2, 2.0), -6 * math.log(0.6), -6.0, 0),
        # r = 8, capped at 5: still a gradient, -5 * 2
        ((0.8, 0.1, 0.1, 2.0), -10 * math.log(0.8), -10.0, 1),
        # r = 0.1: no lower bound, for either sign
        ((0.05, 0.5, 0.5, -2.0), 0.2 * math.log(0.05), 0.2, 0),
        # w = 0.5 / 0.4 = 1.25 on top
        ((0.5, 0.5, 0.4, 2.0), 1.25 * 1.386294, -2.5, 0),
    ],
)
def test_cispo_caps_the_weight_and_keeps_the_gradient(token, loss, gradient, clipped):
    result, slope = loss_of(token, algorithm="cispo")
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert slope.item() == pytest.approx(gradient, rel=1e-5)
    assert (result.policy.clipped_low.item(), result.policy.clipped_high.item()) == (0, clipped)


def test_gspo_has_one_ratio_for_a_trajectory():
    # trajectory of two: s = sqrt(1.2 * 0.9) = 1.03923, inside [0.9, 1.1]; of one: s = 1.5, above, A > 0: clipped
    tokens = [(0.6, 0.5, 0.6, 2.0), (0.45, 0.5, 0.5, 2.0), (0.75, 0.5, 0.5, 1.0)]
    result, gradient = loss_of(
        *tokens, lengths=[2, 1], algorithm="gspo", sequence_clip_low=0.1, sequence_clip_high=0.1, importance_cap=1.0
    )
    s = math.sqrt(1.2 * 0.9)
    w = 0.5 / 0.6
    assert result.policy.ratio.tolist() == pytest.approx([s, s, 1.5], rel=1e-5)
    assert result.loss.tolist() == pytest.approx([-2 * s * w, -2 * s, -1.1], rel=1e-5)
    assert gradient.tolist() == pytest.approx([-2 * s * w, -2 * s, 0], rel=1e-5)
    assert result.policy.clipped_high.tolist() == [0, 0, 1]
    # and below the range for A < 0, at the default range of 3e-4
    low, slope = loss_of((0.499, 0.5, 0.5, -1.0), lengths=[1], algorithm="gspo")
    assert (low.policy.clipped_low.item(), slope.item()) == (1, 0)


def test_a_sequence_ratio_does_not_grow_with_the_length():
    """Every token 1 % more likely: the ratio is 1.01 for 1 token and for 4000, not 1.01 ** 4000."""
    for length in (1, 10, 4000):
        result, _ = loss_of(*[(0.505, 0.5, 0.5, 1.0)] * length, lengths=[length], algorithm="gspo")
        assert result.policy.ratio.max().item() == pytest.approx(1.01, rel=1e-5)
        assert result.importance.mean().item() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "weights", "bounded"),
    [
        # old / sampler = 0.25, 0.5, 1, 2, 4
        ({}, [0.25, 0.5, 1, 2, 2], [0, 0, 0, 0, 1]),
        ({"importance_cap": 1.0}, [0.25, 0.5, 1, 1, 1], [0, 0, 0, 1, 1]),
        ({"importance": "mask"}, [0.25, 0.5, 1, 2, 0], [0, 0, 0, 0, 1]),
        ({"importance": "mask", "importance_cap": 5.0}, [0.25, 0.5, 1, 2, 4], [0, 0, 0, 0, 0]),
        ({"importance": "mask", "importance_floor": 0.4}, [0, 0.5, 1, 2, 0], [1, 0, 0, 0, 1]),
    ],
)
def test_importance_weights_are_truncated_or_masked(settings, weights, bounded):
    tokens = [(old, old, sampler, 1.0) for old, sampler in [(0.1, 0.4), (0.2, 0.4), (0.4, 0.4), (0.4, 0.2), (0.4, 0.1)]]
    result, gradient = loss_of(*tokens, **settings)
    assert result.importance.tolist() == pytest.approx(weights, rel=1e-5)
    assert result.out_of_bounds.tolist() == bounded
    assert gradient.tolist() == pytest.approx([-weight for weight in weights], rel=1e-5)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        # d = ln(0.5 / 0.25) = 0.693147
        ("k1", 0.693147, 0.693147),  # as a cost in the reward: k1 * d logp
        ("k2", 0.240227, 0.693147),  # d^2 / 2, d
        ("k3", 0.5 - 1 + 0.693147, 0.5),  # exp(-d) - 1 + d, 1 - exp(-d)
    ],
)
def test_kl_of_one_token(estimator, value, gradient):
    result, slope = loss_of(
        (0.5, 0.5, 0.4, 0.0), base=[0.25], kl_coefficient=0.1, kl_estimator=estimator
    )  # w = 1.25, no advantage
    assert result.kl.item() == pytest.approx(value, rel=1e-5)
    assert result.loss.item() == pytest.approx(0.1 * 1.25 * value, rel=1e-5)
    assert slope.item() == pytest.approx(0.1 * 1.25 * gradient, rel=1e-5)


def test_the_estimators_agree_with_the_divergence():
    """Over all tokens: the mean of k1 and k3 is KL(policy || base), that of k1 and k2 has its gradient."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    base = torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), 0)
    logprobs = torch.log_softmax(logits, 0)
    exact = (logprobs.exp() * (logprobs - base)).sum()
    (exact_gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
    for estimator in ("k1", "k2", "k3"):
        estimate = (logprobs.exp().detach() * kl_penalty(logprobs, base, estimator)).sum()
        (gradient,) = torch.autograd.grad(estimate, logits, retain_graph=True)
        if estimator != "k2":
            assert estimate.item() == pytest.approx(exact.item(), rel=1e-9)
        if estimator != "k3":
            torch.testing.assert_close(gradient, exact_gradient)


def test_kl_stays_finite_where_the_policy_gave_a_token_up():
    logprobs = torch.tensor([-200.0], requires_grad=True)
    for estimator in ("k1", "k2", "k3"):
        penalty = kl_penalty(logprobs, torch.tensor([-0.1]), estimator)
        (gradient,) = torch.autograd.grad(penalty, logprobs)
        assert penalty.isfinite() and gradient.isfinite()


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"gspo"}))
def test_tokens_do_not_affect_each_other(algorithm):
    tokens = [(0.5, 0.5, 0.4, 2.0), (0.75, 0.5, 0.5, 2.0), (0.25, 0.5, 0.5, -1.0)]
    together, gradient = loss_of(*tokens, algorithm=algorithm)
    alone = [loss_of(token, algorithm=algorithm) for token in tokens]
    assert together.loss.tolist() == [result.loss.item() for result, _ in alone]
    assert gradient.tolist() == [slope.item() for _, slope in alone]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_advantage_zero_gives_no_loss_and_no_gradient(algorithm):
    result, gradient = loss_of((0.3, 0.5, 0.1, 0.0), lengths=[1], algorithm=algorithm)
    assert result.loss.item() == 0
    assert gradient.item() == 0
