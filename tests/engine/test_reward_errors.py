"""What becomes of episodes whose reward failed: worked out by hand."""

import json
import math

import pytest
from pydantic import ValidationError

from engine.batches import batch_metrics, rollout_events
from engine.reward_errors import RewardErrors, describe_loss, judge
from engine.spec import JobSpec, RewardErrorPolicy
from engine.types import Group, Score, Trajectory
from tests.engine.test_batches import group, trajectory
from tests.engine.test_ledger import make_spec


def spec(algorithm: str = "grpo", **policy) -> JobSpec:
    made = make_spec()
    return made.model_copy(
        update={
            "reward_errors": RewardErrorPolicy(**policy),
            "training": made.training.model_copy(update={"algorithm": algorithm}),
        }
    )


DROP = {"mode": "drop_episode"}


def batch(errors: int, episodes: int = 8) -> list[Group]:
    scores = [trajectory(0.0, error=f"error {n}") for n in range(errors)]
    return [group(*scores, *(trajectory(n / 10) for n in range(episodes - errors)))]


# --- what is trained ---


def test_by_default_a_failed_episode_counts_as_zero():
    judged = judge(spec(), [group(trajectory(1.0), trajectory(0.0, error="died"))])
    assert [len(one.trajectories) for one in judged.groups] == [2]
    assert judged.advantages == judged.shown == [[pytest.approx(1, abs=1e-3), pytest.approx(-1, abs=1e-3)]]


def test_a_dropped_episode_leaves_the_advantages_of_the_others_alone():
    """Rewards 1, 0.5 and 0: mean 0.5, and a standard deviation of sqrt(1/6). With the error as a 0 it would be
    another mean."""
    drawn = [group(trajectory(1.0), trajectory(0.0, error="died"), trajectory(0.5), trajectory(0.0), row=7)]
    judged = judge(spec(**DROP), drawn)
    high = 0.5 / (math.sqrt(1 / 6) + 1e-4)
    assert judged.advantages == [pytest.approx([high, 0, -high])]
    assert judged.shown == [pytest.approx([high, 0, 0, -high])]
    assert [t.score.error for t in judged.groups[0].trajectories] == [False, False, False]
    assert judged.groups[0].row == 7
    (event,) = rollout_events(3, drawn, judged.shown)
    assert [(episode.error, episode.advantage) for episode in event.episodes][1] == (True, 0.0)


def test_leave_one_out_leaves_the_failed_ones_out_too():
    drawn = [group(trajectory(1.0), trajectory(0.0, error="died"), trajectory(0.5), trajectory(0.0))]
    assert judge(spec("rloo", **DROP), drawn).advantages == [pytest.approx([0.75, 0, -0.75])]


def test_a_group_with_fewer_than_two_episodes_left_is_dropped_and_the_others_keep_their_place():
    drawn = [
        group(trajectory(1.0), trajectory(0.0, error="a"), trajectory(0.0, error="b"), row=1),
        group(trajectory(1.0), trajectory(0.0, error="c"), trajectory(0.0), row=2),
        group(trajectory(0.0, error="d"), trajectory(0.0, error="e"), trajectory(0.0, error="f"), row=3),
    ]
    judged = judge(spec("dr_grpo", **DROP), drawn)
    assert [one.row for one in judged.groups] == [2]
    assert judged.advantages == [[0.5, -0.5]]
    assert judged.shown == [[0, 0, 0], [0.5, 0, -0.5], [0, 0, 0]]
    metrics = batch_metrics(spec(**DROP), drawn)
    assert (metrics["dropped_episodes"], metrics["dropped_groups"], metrics["reward_errors"]) == (7, 2, 6)
    assert (metrics["reward_mean"], metrics["accuracy"], metrics["reward_std"]) == (0.5, 0.5, 0.5)
    assert metrics["tokens_sampled"] == 27  # they were drawn all the same


def test_equal_episodes_are_kept_apart():
    """Two failed episodes may be equal in every field to each other; each keeps its own place."""
    one = Trajectory([1], [True], [-1.0], 1, "x", False, Score(0.0, error=True, reason="died"))
    drawn = [Group(0, [1], "q", "a", [one, trajectory(1.0), one, trajectory(0.0)])]
    assert judge(spec("dr_grpo", **DROP), drawn).shown == [[0, 0.5, 0, -0.5]]


def test_a_batch_of_failed_episodes_has_no_signal_and_no_reward():
    judged = judge(spec(**DROP), batch(8))
    assert judged.groups == [] and not judged.has_signal
    assert "reward_mean" not in batch_metrics(spec(**DROP), batch(8))
    assert describe_loss(batch(7)) == (
        "The reward failed on 7 of 8 completions, which leaves no prompt with two that were scored: error 0."
    )


# --- when they are too many ---


def watched(errors, **policy) -> RewardErrors:
    made = RewardErrors(spec(**policy))
    for number, count in enumerate(errors, start=1):
        made.observe_batch(number, number, batch(count))
    return made


def test_without_a_limit_nothing_is_too_much():
    assert watched([8, 8, 8]).too_many == ""
    assert watched([8, 8, 8], **DROP).too_many == ""


def test_one_error_fails_a_job_that_allows_none():
    assert watched([0, 0], mode="fail_job").too_many == ""
    assert watched([0, 1], mode="fail_job").too_many == (
        "The reward failed on 1 of 16 completions (6%) of the last 2 batches, and this job allows no error."
    )


def test_the_share_is_that_of_the_window():
    limit = {"max_fraction": 0.25, "window_batches": 2}
    assert watched([4, 0], **limit).too_many == ""  # 4 of 16, just allowed
    assert watched([4, 0, 4], **limit).too_many == ""
    assert watched([0, 3, 2], **limit).too_many == (
        "The reward failed on 5 of 16 completions (31%) of the last 2 batches, more than the 25% this job allows."
    )
    assert "3 of 8 completions (38%) of the last batch" in watched([3], **limit).too_many


@pytest.mark.parametrize("bad", [{"max_fraction": 1.5}, {"window_batches": 0}, {"mode": "ignore"}, {"limit": 1}])
def test_what_makes_no_policy_is_refused(bad):
    with pytest.raises(ValidationError):
        RewardErrorPolicy(**bad)


# --- the first ones in full ---


def failed(kind: str = "exception") -> Trajectory:
    score = Score(0.0, reason="ZeroDivisionError: division by zero", error=True, error_kind=kind,
                  details="line 3, in score", console="hello")  # fmt: skip
    return Trajectory([1], [True], [-1.0], 4, "It is 4.", False, score)


def test_the_first_five_are_told_in_full_and_no_more():
    made = RewardErrors(spec())
    told = made.observe_batch(1, 4, [group(trajectory(1.0), failed(), row=3), group(failed("timed_out"), row=9)])
    assert [(one.step, one.row, one.kind, one.evaluation) for one in told] == [
        (1, 3, "exception", False), (1, 9, "timed_out", False),
    ]  # fmt: skip
    assert told[0].completion == "It is 4." and told[0].reason == "ZeroDivisionError: division by zero"
    assert (told[0].details, told[0].console) == ("line 3, in score", "hello")
    (evaluated,) = made.observe_evaluation(1, [group(failed(), row=2)])
    assert evaluated.evaluation and evaluated.row == 2
    assert len(made.observe_batch(2, 8, [group(*[failed()] * 8)])) == 2
    assert made.observe_batch(3, 12, [group(failed())]) == []


def test_a_batch_drawn_again_after_a_restart_is_neither_told_nor_counted_twice():
    made = watched([0, 3], max_fraction=0.5)
    restored = RewardErrors(spec(max_fraction=0.5))
    restored.restore(json.loads(json.dumps(made.state())))
    assert restored.observe_batch(2, 2, batch(3)) == []
    assert restored.state() == made.state()
    assert len(restored.observe_batch(3, 3, batch(8))) == 2
    assert restored.too_many == ""  # 11 of 24
    restored.observe_batch(4, 4, batch(8))
    assert "19 of 32" in restored.too_many


def test_long_texts_are_shortened():
    long = Trajectory(
        [1], [True], [-1.0], 4, "x" * 10**6, False, Score(0.0, error=True, reason="r", details="d" * 10**6)
    )
    (told,) = RewardErrors(spec()).observe_batch(1, 1, [group(long)])
    assert len(told.completion) == len(told.details) == 20_000
