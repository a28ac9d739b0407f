"""From finished groups to metrics, events and the words for a batch that teaches nothing."""

from itertools import pairwise

import pytest

from engine.batches import batch_metrics, describe_silence, rollout_event, sampling_seed
from engine.types import Group, Score, Trajectory
from tests.engine.test_ledger import make_spec


def trajectory(
    total: float, *, tokens: int = 3, error: str = "", truncated: bool = False, **parts: float
) -> Trajectory:
    return Trajectory(
        token_ids=list(range(tokens)),
        loss_mask=[True] * tokens,
        logprobs=[-1.0] * tokens,
        adapter_version=4,
        text=f"text {total}",
        truncated=truncated,
        score=Score(total, parts, error, bool(error)),
    )


def group(*trajectories: Trajectory, row: int = 0) -> Group:
    return Group(row, [1, 2], "question", "answer", list(trajectories))


def test_metrics_of_a_batch():
    groups = [
        group(trajectory(1.0, tokens=2, exact=1.0), trajectory(0.0, tokens=4, truncated=True, exact=0.0)),
        group(trajectory(0.5, tokens=3, exact=0.0), trajectory(0.5, tokens=3, error="timed out", exact=0.0)),
    ]
    assert batch_metrics(make_spec(), groups) == {
        "reward_mean": 0.5,
        "reward_std": pytest.approx(0.125**0.5),
        "reward_exact": 0.25,
        "accuracy": 0.25,
        "zero_variance_groups": 1.0,
        "completion_tokens_mean": 3.0,
        "truncated_fraction": 0.25,
        "reward_errors": 1.0,
        "tokens_sampled": 12.0,
    }


def test_tokens_of_the_environment_are_not_counted_as_sampled():
    mixed = Trajectory([1, 2, 3, 4], [True, False, False, True], [-1.0, 0, 0, -1.0], 1, "t", False, Score(1.0))
    metrics = batch_metrics(make_spec(), [group(mixed, trajectory(0.0, tokens=2))])
    assert metrics["tokens_sampled"] == 4
    assert metrics["completion_tokens_mean"] == 2


def test_a_group_as_an_event():
    event = rollout_event(5, group(trajectory(1.0, a=1.0), trajectory(0.0, error="no number"), row=9), [0.9, -0.9])
    assert (event.step, event.row, event.prompt, event.answer) == (5, 9, "question", "answer")
    first, second = event.episodes
    assert (first.reward, first.parts, first.advantage, first.tokens, first.adapter_version) == (1, {"a": 1}, 0.9, 3, 4)
    assert (second.error, second.reason) == (True, "no number")


def test_seeds_of_neighbouring_prompts_are_far_apart_and_repeat():
    seeds = [sampling_seed(7, drawn) for drawn in range(1000)]
    assert seeds == [sampling_seed(7, drawn) for drawn in range(1000)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    ordered = sorted(seeds)
    assert min(b - a for a, b in pairwise(ordered)) > 0
    assert sampling_seed(7, 0) != sampling_seed(8, 0)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([group(trajectory(0.0), trajectory(0.0))], "every completion of the last 3 batches scored 0."),
        ([group(trajectory(1.0), trajectory(1.0))], "every completion of the last 3 batches scored 1."),
        (
            [group(trajectory(1.0), trajectory(1.0)), group(trajectory(0.0), trajectory(0.0))],
            "never varied among the completions of one prompt",
        ),
        (
            [group(trajectory(0.0, error="timed out after 5 s"), trajectory(0.0, error="x"))],
            "The reward failed on every completion of the last 3 batches: timed out after 5 s",
        ),
    ],
)
def test_why_a_batch_teaches_nothing(groups, words):
    assert words in describe_silence(groups, 3)
