"""Runs made sick on purpose: each rule finds its own sickness in a series of metrics, once, with its numbers."""

from __future__ import annotations

import pytest

from engine.doctor import Doctor
from engine.doctor.rules import EVALUATION_RULES, STEP_RULES
from tests.engine.doctor.runs import Run, make_spec, rising, steady


def jump(before: float, after: float, at: float = 0.5):
    return lambda t: before if t < at else after


SICK = {
    "the reward breaks": ("reward_errors", {"errors": jump(0.0, 1.0)}, 3),
    "one grading in six fails": ("reward_errors", {"errors": steady(0.16)}, 1),
    "nothing is ever right": ("no_learning_signal", {"correct": steady(0.002), "spread": 0.1}, 1),
    "everything is cut off": ("all_truncated", {"truncated": steady(1.0)}, 1),
    "more and more is cut off": ("all_truncated", {"truncated": rising(0.1, 1.0)}, 2),
    "most is cut off": ("all_truncated", {"truncated": steady(0.88)}, 1),
    "entropy collapses": ("entropy_collapse", {"correct": steady(0.3), "entropy": rising(0.9, 0.03)}, 1),
    "entropy vanishes": ("entropy_collapse", {"correct": steady(0.3), "entropy": rising(0.9, 0.001)}, 2),
    "the policy runs away": ("kl_blow_up", {"correct": rising(0.4, 0.1), "kl": rising(0.0, 4.0)}, 1),
    "the policy breaks": ("kl_blow_up", {"correct": rising(0.4, 0.02), "kl": rising(0.0, 80.0)}, 2),
    "the ratio leaves 1": ("ratio_blow_up", {"ratio": rising(1.0, 1.3)}, 1),
    "everything is clipped": ("ratio_blow_up", {"clipped": jump(0.05, 0.9)}, 2),
    "another adapter answers": ("sampler_trainer_gap", {"gap": jump(0.02, 0.5)}, 2),
    "the sampler drifts away": ("sampler_trainer_gap", {"gap": rising(0.02, 0.6)}, 2),
    "completions grow": ("lengths_running_away", {"correct": steady(0.4), "tokens": rising(60, 330)}, 2),
    "completions explode": ("lengths_running_away", {"correct": rising(0.4, 0.2), "tokens": rising(60, 500)}, 2),
    "the environment hangs": ("stalled_environment", {"environment": jump(4.0, 70.0)}, 1),
    "the environment hangs long": ("stalled_environment", {"environment": jump(4.0, 900.0)}, 2),
    "the grader is fooled": ("reward_hacking", {"correct": rising(0.3, 0.9), "held_out": rising(0.6, 0.2)}, 1),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_is_named(name, seed):
    code, sickness, times = SICK[name]
    said = [notice for _, notice in Run(make_spec(), **sickness).play(seed) if notice.code == code]
    assert 1 <= len(said) <= times  # once, and again only where it got markedly worse
    assert {notice.level for notice in said} == {"warning"}
    assert not any(notice.over for notice in said)
    assert all(notice.hint and any(letter.isdigit() for letter in notice.message) for notice in said)
    assert [notice.message.startswith("It got worse.") for notice in said] == [False] + [True] * (len(said) - 1)


def test_every_rule_has_a_sick_run():
    assert {code for code, *_ in SICK.values()} == {rule.code for rule in STEP_RULES + EVALUATION_RULES} - {
        "identical_completions"  # it needs groups
    }


@pytest.mark.parametrize(
    "name", ["entropy vanishes", "more and more is cut off", "the sampler drifts away", "the policy breaks"]
)
def test_getting_markedly_worse_is_said_again(name):
    code, sickness, times = SICK[name]
    said = [notice for _, notice in Run(make_spec(), **sickness).play(1) if notice.code == code]
    assert len(said) == times == 2


@pytest.mark.parametrize(
    ("code", "sickness"),
    [
        ("reward_errors", {"errors": lambda t: 0.5 if 0.3 < t < 0.5 else 0.0}),
        ("all_truncated", {"truncated": lambda t: 1.0 if t < 0.5 else 0.1}),
        ("no_learning_signal", {"correct": lambda t: 0.002 if t < 0.4 else 0.5, "spread": 0.2}),
        ("entropy_collapse", {"correct": steady(0.3), "entropy": lambda t: 0.01 if 0.3 < t < 0.6 else 0.8}),
        ("kl_blow_up", {"correct": steady(0.3), "kl": lambda t: 5.0 if 0.3 < t < 0.6 else 0.05}),
        ("ratio_blow_up", {"ratio": lambda t: 1.5 if 0.3 < t < 0.6 else 1.0}),
        ("sampler_trainer_gap", {"gap": lambda t: 0.4 if 0.3 < t < 0.6 else 0.01}),
        ("lengths_running_away", {"correct": steady(0.3), "tokens": lambda t: 400 if 0.3 < t < 0.7 else 60}),
        ("stalled_environment", {"environment": lambda t: 200 if 0.3 < t < 0.6 else 2}),
        ("reward_hacking", {"correct": rising(0.3, 0.9), "held_out": lambda t: 0.1 if 0.4 < t < 0.7 else 0.7}),
    ],
)
def test_what_is_over_is_said_once_as_information(code, sickness):
    said = [notice for _, notice in Run(make_spec(), steps=80, **sickness).play(2) if notice.code == code]
    *found, over = said
    assert found
    assert all(notice.level == "warning" and not notice.over for notice in found)
    assert over.over
    assert over.level == "info"
    assert over.message.startswith("It is over. ")


def test_what_comes_back_is_said_again():
    gap = Run(make_spec(), steps=90, gap=lambda t: 0.15 if (t * 3) % 1 > 0.5 else 0.01)
    said = [notice for _, notice in gap.play(0) if notice.code == "sampler_trainer_gap"]
    assert [notice.over for notice in said] == [False, True, False, True, False]


def test_at_the_border_of_a_threshold_nothing_is_said_each_step():
    run = Run(make_spec(), steps=400, gap=steady(0.1), noise=0.15)
    said = [notice for _, notice in run.play(0) if notice.code == "sampler_trainer_gap"]
    assert len(said) == 1


def test_a_broken_reward_is_said_at_once():
    step, notice = Run(make_spec(), errors=steady(1.0)).play(0)[0]
    assert (step, notice.code) == (1, "reward_errors")
    assert notice.message == "The reward failed on 64 of the last 64 completions, which then score 0."


def test_a_run_that_diverges_is_not_called_reward_hacking():
    """Held-out quality falls, but so does the training reward."""
    run = Run(make_spec(), correct=rising(0.7, 0.1), held_out=rising(0.7, 0.1))
    assert "reward_hacking" not in {notice.code for _, notice in run.play(0)}


def test_growing_and_gaining_is_no_sickness_but_growing_on_is():
    """Completions grow all along; the reward rises in the first half only."""
    run = Run(make_spec(), steps=100, correct=lambda t: 0.2 + min(t, 0.5), tokens=lambda t: 50 * 2 ** (5 * t))
    first = []
    for seed in range(5):
        said = [step for step, notice in run.play(seed) if notice.code == "lengths_running_away"]
        first.append(said[0])
    assert min(first) > 50


def test_the_numbers_in_the_message_of_reward_hacking():
    doctor = Doctor(make_spec(held_out=400))
    training = iter([0.3, 0.3, 0.3, 0.6, 0.9])
    found = []
    for step, accuracy in enumerate([0.6, 0.6, 0.6, 0.2, 0.2], start=1):
        doctor.observe_step(step, {"reward_mean": next(training), "tokens_trained": 1.0}, [])
        found += doctor.observe_evaluation(step, accuracy, 0.5)
    # pairs of evaluations: .6, .6, .4, .2; training so far: .3, .3, .3, .375, .48, in pairs: .3, .3, .3375, .4275
    assert [notice.message for notice in found] == [
        "Held-out accuracy went from 0.600 (step 3) to 0.200 (step 5) while the training reward went from 0.300 to "
        "0.427."
    ]
