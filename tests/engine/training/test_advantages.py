"""Group-relative advantages."""

from __future__ import annotations

import math

import pytest

from engine.training.advantages import group_advantages


def test_worked_example():
    # mean 0.5, deviations 0.5 and -0.5, population std 0.5
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == pytest.approx([0.9998, -0.9998, -0.9998, 0.9998], abs=1e-6)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, 1e-9])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_equal_rewards_give_exactly_zero(reward, size):
    assert group_advantages([reward] * size) == [0.0] * size


def test_a_small_difference_is_not_blown_up():
    assert max(map(abs, group_advantages([0.3, 0.3, 0.3 + 1e-9, 0.3]))) < 1e-4


def test_advantages_sum_to_zero_and_keep_the_order():
    rewards = [0.2, 0.9, 0.4, 0.4, 0.0]
    advantages = group_advantages(rewards)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-12)
    assert sorted(range(5), key=advantages.__getitem__) == sorted(range(5), key=rewards.__getitem__)


def test_empty_group():
    assert group_advantages([]) == []
