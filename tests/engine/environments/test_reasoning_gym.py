"""reasoning-gym tasks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.data import DatasetError
from engine.environments import reasoning_gym
from engine.environments.reasoning_gym import generate, with_own_scorer
from engine.environments.worker import EnvironmentWorker
from engine.prompts import load_prompts
from engine.spec import (
    BaseModelSpec,
    EnvironmentReward,
    JobSpec,
    Mix,
    MixPart,
    Numeric,
    ReasoningGym,
    ReasoningGymScore,
    RewardSpec,
    SingleTurn,
)
from engine.types import BASE, Completion, RolloutRequest
from tests.engine.environments.playing import JOB

SUMS = ReasoningGym(dataset="chain_sum", config={"max_terms": 3}, train_rows=5, held_out_rows=2, tasks_seed=7)


def spec(grader: Any, environment: ReasoningGym = SUMS) -> JobSpec:
    return JobSpec(
        job_id=JOB,
        tenant_id="acme",
        base_model=BaseModelSpec(id="tiny", location="tiny", context_length=256),
        reward=RewardSpec(grader=grader),
        environment=environment,
    )


def test_the_environments_reward_is_the_datasets_scorer() -> None:
    scorer = ReasoningGymScore(dataset="chain_sum", config={"max_terms": 3})
    assert with_own_scorer(RewardSpec(grader=EnvironmentReward()), SUMS).grader == scorer
    mix = Mix(
        parts=[
            MixPart(name="own", weight=2, grader=EnvironmentReward()),
            MixPart(name="number", weight=1, grader=Numeric()),
        ]
    )
    mixed = with_own_scorer(RewardSpec(grader=mix, timeout_seconds=3), SUMS)
    assert isinstance(mixed.grader, Mix)
    assert [part.grader for part in mixed.grader.parts] == [scorer, Numeric()]
    assert mixed.timeout_seconds == 3
    plain = RewardSpec(grader=mix)
    assert with_own_scorer(plain, SingleTurn()) is plain


def test_a_scorer_that_needs_more_than_a_row_carries_is_refused() -> None:
    """As the ones of ARC, which compare tuples; JSON has none."""

    class Dataset:
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"question": "?", "answer": "1", "metadata": {"grid": (1, 2)}}

        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return float(entry["metadata"]["grid"] == (1, 2))

    with pytest.raises(RuntimeError, match="the scorer of arc needs what a row cannot carry"):
        reasoning_gym.check_scorer(Dataset(), "arc")


def test_generating_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, timeout: float, **kwargs: Any) -> SimpleNamespace:
        raise reasoning_gym.subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(reasoning_gym.subprocess, "run", run)
    with pytest.raises(DatasetError, match="did not generate 7 tasks within 120 s"):
        generate(SUMS)


def test_tasks_are_generated_and_the_same_every_time() -> None:
    dataset = generate(SUMS)
    assert [number for number, _ in dataset.train] == [0, 1, 2, 3, 4]
    assert [number for number, _ in dataset.held_out] == [5, 6]
    assert generate(SUMS) == dataset
    assert generate(SUMS.model_copy(update={"tasks_seed": 8})) != dataset
    _, row = dataset.train[0]
    terms = row.messages[0].content.split(": ")[-1].removesuffix(" =").replace("=", "").strip()
    sum_ = 0
    for term in terms.replace("- ", "+ -").split("+"):
        sum_ += int(term.replace(" ", ""))
    assert row.answer == str(sum_)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (ReasoningGym(dataset="no_such"), "dataset no_such cannot be generated: Dataset 'no_such' not registered"),
        (ReasoningGym(dataset="chain_sum", config={"color": 1}), "unexpected keyword argument 'color'"),
        (ReasoningGym(dataset="arc_agi", train_rows=1, held_out_rows=0), "scorer of arc_agi needs what a row cannot"),
    ],
)
def test_what_cannot_be_generated_says_why(environment: ReasoningGym, says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        generate(environment)


async def test_a_job_without_a_dataset_draws_and_scores_tasks(tiny_model: Path) -> None:
    job = spec(EnvironmentReward())
    prompts = load_prompts(job, str(tiny_model))
    assert (len(prompts.train), len(prompts.held_out), len(prompts.train_ids)) == (5, 2, 5)
    line, row = prompts.train[0]
    texts = [row.answer, f"Well. <answer> {row.answer} </answer>", "<answer>no</answer>"]

    async def rollout(request: RolloutRequest) -> list[Completion]:
        return [Completion([1, 2], [-1.0, -1.0], text, "stop", request.policy.name) for text in texts]

    worker = EnvironmentWorker(tiny_model, 2, rollout)
    group = (await worker.run_group(job, BASE, line, row, prompts.train_ids[0], 3, 1.0, 0)).group
    await worker.close()
    right, tagged, wrong = (trajectory.score for trajectory in group.trajectories)
    assert not any(score.error for score in (right, tagged, wrong)), wrong.reason
    assert (right.total, tagged.total) == (1, 1) and wrong.total < 0.1
    assert json.loads(row.model_dump_json())["metadata"]["source_dataset"] == "chain_sum"
