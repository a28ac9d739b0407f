"""The doctor on real groups: the metrics are those the engine computes of them."""

from __future__ import annotations

import random

from engine.batches import batch_metrics, rewards
from engine.doctor import Doctor
from engine.events import Notice
from engine.training.advantages import group_advantages
from engine.types import Group, Score, Trajectory
from tests.engine.doctor.runs import make_spec

RNG = random.Random(0)


def episode(total: float = 0.0, *, tokens: list[int] | None = None, truncated: bool = False, error: str = ""):
    tokens = tokens or [RNG.randrange(1000) for _ in range(5)]
    return Trajectory(
        tokens, [True] * len(tokens), [-1.0] * len(tokens), 1, "text", truncated, Score(total, {}, error, bool(error))
    )


def healthy_group() -> Group:
    return group([episode(float(i % 2)) for i in range(8)])


def group(trajectories: list[Trajectory]) -> Group:
    return Group(0, [1, 2], "question", "answer", trajectories)


def observe(doctor: Doctor, step: int, groups: list[Group]) -> list[Notice]:
    """As the job does: a batch without any advantage is not trained."""
    advantages = [group_advantages(rewards(group)) for group in groups]
    metrics = batch_metrics(make_spec(), groups)
    if any(advantage for group in advantages for advantage in group):
        metrics["tokens_trained"] = 1.0
    return doctor.observe_step(step, metrics, groups)


def say(make, batches: int = 12, doctor: Doctor | None = None, first: int = 1) -> list[Notice]:
    doctor = doctor or Doctor(make_spec())
    return [
        notice for step in range(first, first + batches) for notice in observe(doctor, step, [make() for _ in range(8)])
    ]


def test_healthy_groups_are_healthy():
    assert say(healthy_group) == []


def test_a_reward_that_fails_is_named_with_what_it_said():
    said = say(lambda: group([episode(error="timed out after 5 s.") for _ in range(8)]), batches=1)
    assert [notice.code for notice in said] == ["reward_errors"]
    assert said[0].message == (
        "The reward failed on 64 of the last 64 completions, which then score 0. The last error: timed out after 5 s."
    )
    assert "now 5" in said[0].hint


def test_rewards_that_never_vary():
    said = say(lambda: group([episode(0.0) for _ in range(8)]))
    assert [(notice.code, notice.level) for notice in said] == [("no_learning_signal", "warning")]
    assert said[0].message == (
        "24 of the last 24 groups taught nothing because all their completions scored the same: "
        "0 were solved by every completion, 24 were not."
    )


def test_rewards_that_never_vary_because_all_is_solved():
    said = say(lambda: group([episode(1.0) for _ in range(8)]))
    assert [(notice.code, notice.level) for notice in said] == [("no_learning_signal", "info")]


def test_silence_half_solved_half_hopeless():
    totals = iter([1.0, 0.0, 0.0] * 100)

    def make():
        total = next(totals)
        return group([episode(total) for _ in range(8)])

    assert [(notice.code, notice.level) for notice in say(make)] == [("no_learning_signal", "warning")]


def test_completions_that_are_all_cut_off():
    said = say(lambda: group([episode(float(i % 2), truncated=True) for i in range(8)]))
    assert [notice.code for notice in said] == ["all_truncated", "all_truncated"][: len(said)]
    assert "100% of the last" in said[0].message
    assert "512 tokens" in said[0].message


def test_identical_completions_and_their_end():
    doctor = Doctor(make_spec())
    said = say(lambda: group([episode(0.5, tokens=[7, 8, 9]) for _ in range(8)]), doctor=doctor)
    assert {notice.code for notice in said} == {"identical_completions", "no_learning_signal"}
    first = next(notice for notice in said if notice.code == "identical_completions")
    assert first.message.startswith("In 24 of the last 24 groups every completion was the same")
    over = say(healthy_group, doctor=doctor, first=13)
    assert [(notice.code, notice.over) for notice in over if notice.code == "identical_completions"] == [
        ("identical_completions", True)
    ]


def test_identical_but_solved_is_fine():
    said = say(lambda: group([episode(1.0, tokens=[7, 8, 9]) for _ in range(8)]))
    assert "identical_completions" not in {notice.code for notice in said}


def test_the_smallest_job_is_diagnosed_too():
    """One prompt a step, two episodes: it takes longer."""
    doctor = Doctor(make_spec(prompts=1, group_size=2))
    codes = [
        notice.code
        for step in range(1, 20)
        for notice in observe(doctor, step, [group([episode(0.0, tokens=[1, 2], truncated=True) for _ in range(2)])])
    ]
    assert {"no_learning_signal", "all_truncated", "identical_completions"} <= set(codes)


def test_lengths_that_run_away():
    lengths = iter([length for step in range(40) for length in [30 * (1 + step // 2)] * 64])

    def make():
        return group([episode(float(i % 2), tokens=RNG.choices(range(1000), k=next(lengths))) for i in range(8)])

    said = say(make, batches=40)
    assert {notice.code for notice in said} == {"lengths_running_away"}
