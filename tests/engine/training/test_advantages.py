"""Advantages on values worked out by hand."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from engine.spec import Algorithm, TrainingSettings
from engine.training.advantages import (
    advantages_of,
    batch_advantages,
    group_advantages,
    has_signal,
    shaped_rewards,
)
from engine.types import Group, Score, Trajectory
from tests.engine.training.factory import make_spec


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


UP, DOWN = (7 / 12) / (23**0.5 / 12 + 1e-4), (-5 / 12) / (23**0.5 / 12 + 1e-4)
BATCH = [[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 1.0, 0.0]]


def settings(algorithm: str) -> TrainingSettings:
    return TrainingSettings(algorithm=algorithm)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        # means 0.5, 0.5, 0.25; population deviations 0.5, 0 and sqrt(3)/4 = 0.4330127; + 1e-4
        *(
            (name, [[0.9998, -0.9998, -0.9998, 0.9998], [0] * 4, [-0.577217, -0.577217, 1.731651, -0.577217]])
            for name in ("grpo", "dapo", "gspo", "cispo")
        ),
        ("dr_grpo", [[0.5, -0.5, -0.5, 0.5], [0] * 4, [-0.25, -0.25, 0.75, -0.25]]),
        # the others' means: 1/3 and 2/3; 0.5; 1/3 and 0
        ("rloo", [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [0] * 4, [-1 / 3, -1 / 3, 1, -1 / 3]]),
        # all twelve: mean 5/12, mean of squares 4/12, std sqrt(48/144 - 25/144) = sqrt(23)/12
        (
            "reinforce_pp",
            [
                [UP, DOWN, DOWN, UP],
                [(1 / 12) / (23**0.5 / 12 + 1e-4)] * 4,
                [DOWN, DOWN, UP, DOWN],
            ],
        ),
        # centred by group: squares 4 * 0.25 + 3 * 0.0625 + 0.5625 = 1.75, std sqrt(1.75 / 12) = 0.3818813
        (
            "reinforce_pp_baseline",
            [
                [1.308965, -1.308965, -1.308965, 1.308965],
                [0] * 4,
                [-0.654482, -0.654482, 1.963447, -0.654482],
            ],
        ),
    ],
)
def test_worked_batch(algorithm, expected):
    advantages = batch_advantages(settings(algorithm), BATCH)
    assert [len(group) for group in advantages] == [4, 4, 4]
    for group, values in zip(advantages, expected, strict=True):
        assert group == pytest.approx(values, abs=2e-6)


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_equal_rewards_teach_nothing(algorithm):
    third = 0.1 + 0.2 - 0.2 / 3  # a mean of it rounds
    assert batch_advantages(settings(algorithm), [[third] * 7] * 3) == [[0.0] * 7] * 3
    assert batch_advantages(settings(algorithm), []) == []
    mixed = batch_advantages(settings(algorithm), [[third] * 7, [0.0, 1.0, third, 0.3, 0.9, 0.2, 0.7]])
    assert mixed[0] == ([0.0] * 7 if algorithm != "reinforce_pp" else pytest.approx([mixed[0][0]] * 7))
    assert any(mixed[1])


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_other_groups_change_an_advantage_only_where_the_batch_is_normalised(algorithm):
    group = [0.0, 1.0, 0.25]
    alone = batch_advantages(settings(algorithm), [group])[0]
    beside = batch_advantages(settings(algorithm), [group, [0.9, 0.1, 0.2]])[0]
    assert (alone == beside) == (not algorithm.startswith("reinforce_pp"))


def episodes(*scored: tuple[float, int]) -> Group:
    """Episodes as (reward, sampled tokens), each with three tokens of the environment."""
    return Group(
        0, [1], "", "",
        [
            Trajectory([5] * (n + 3), [True] * n + [False] * 3, [-1.0] * (n + 3), 0, "", False, Score(reward))
            for reward, n in scored
        ],
    )  # fmt: skip


def test_overlong_answers_lose_reward():
    spec = make_spec(overlong_buffer=8)  # of max_tokens 32: from 24 on
    group = episodes((1.0, 4), (1.0, 24), (1.0, 26), (0.5, 32))
    assert shaped_rewards(spec, group) == [1.0, 1.0, 0.75, -0.5]
    assert shaped_rewards(make_spec(), group) == [1.0, 1.0, 1.0, 0.5]
    assert shaped_rewards(make_spec(algorithm="dapo", overlong_buffer=0), group) == [1.0, 1.0, 1.0, 0.5]
    # dapo's own: a fifth of 32, so 6 tokens, from 26 on
    assert shaped_rewards(make_spec(algorithm="dapo"), episodes((1.0, 26), (1.0, 29))) == [1.0, 0.5]


def test_advantages_of_groups_are_those_of_their_shaped_rewards():
    spec = make_spec(algorithm="dr_grpo", overlong_buffer=8)
    group = episodes((1.0, 4), (1.0, 28))
    assert advantages_of(spec, [group]) == [[0.25, -0.25]]
    assert advantages_of(make_spec(), [group]) == [group_advantages([1.0, 1.0])]
    assert has_signal(spec, group)
    assert not has_signal(make_spec(), group)
