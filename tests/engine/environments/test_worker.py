"""Groups of episodes, with a fake rollout and real grading processes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from engine.environments.worker import EnvironmentWorker, GroupResult
from engine.spec import (
    BaseModelSpec,
    DatasetRef,
    DatasetRow,
    Grader,
    JobSpec,
    Judge,
    Message,
    Mix,
    MixPart,
    Numeric,
    Regex,
    RewardSpec,
    SamplingSettings,
)
from engine.types import BASE, AdapterRef, Completion, Policy, RolloutRequest

JOB = "0" * 31 + "1"
ADAPTER = AdapterRef(job_id=JOB, version=3, lora_id=7, path="/adapters/3", sha256="0" * 64)
ROW = DatasetRow(messages=[Message(role="user", content="6 * 7?")], answer="42")


def spec(grader: Grader, limit: float = 5) -> JobSpec:
    return JobSpec(
        job_id=JOB,
        tenant_id="acme",
        base_model=BaseModelSpec(id="tiny", location="tiny", context_length=256),
        dataset=DatasetRef(path="/rows", sha256="0" * 64, train_rows=1, held_out_rows=0),
        reward=RewardSpec(grader=grader, timeout_seconds=limit),
        sampling=SamplingSettings(max_tokens=12),
    )


class FakeRollout:
    """Answers with given texts; token ids and log-probabilities are told apart by position."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.requests: list[RolloutRequest] = []
        self.change: Callable[[Completion], Completion] = lambda completion: completion

    async def __call__(self, request: RolloutRequest) -> list[Completion]:
        self.requests.append(request)
        await asyncio.sleep(0.01)
        return [
            self.change(
                Completion(
                    token_ids=[10 * i, 10 * i + 1, 2],
                    logprobs=[-0.1 * i, -0.2, -0.3],
                    text=text,
                    finish_reason="length" if text == "cut" else "stop",
                    policy=request.policy.name,
                )
            )
            for i, text in enumerate(self.texts)
        ]


@pytest_asyncio.fixture
async def rollout() -> FakeRollout:
    return FakeRollout("It is 42.", "It is 41.", "cut")


@pytest_asyncio.fixture
async def worker(rollout: FakeRollout, tmp_path: Path) -> AsyncIterator[EnvironmentWorker]:
    worker = EnvironmentWorker(tmp_path, 2, rollout)
    yield worker
    await worker.close()


async def run(worker: EnvironmentWorker, job: JobSpec, policy: Policy = ADAPTER, n: int = 3) -> GroupResult:
    return await worker.run_group(job, policy, 5, ROW, [1, 2, 3], n, 0.7, 99)


async def test_the_rollout_is_asked_once_with_the_jobs_settings(
    worker: EnvironmentWorker, rollout: FakeRollout
) -> None:
    await run(worker, spec(Numeric()))
    assert rollout.requests == [
        RolloutRequest(ADAPTER, [1, 2, 3], n=3, max_tokens=12, temperature=0.7, seed=99, job_id=JOB)
    ]


async def test_a_group_holds_the_sampled_tokens_untouched_with_their_scores(worker: EnvironmentWorker) -> None:
    group = (await run(worker, spec(Numeric()))).group
    assert (group.row, group.prompt_ids, group.prompt_text, group.answer) == (5, [1, 2, 3], "6 * 7?", "42")
    assert [t.token_ids for t in group.trajectories] == [[0, 1, 2], [10, 11, 2], [20, 21, 2]]
    assert [t.logprobs for t in group.trajectories] == [[0, -0.2, -0.3], [-0.1, -0.2, -0.3], [-0.2, -0.2, -0.3]]
    assert all(t.loss_mask == [True, True, True] for t in group.trajectories)
    assert [t.score.total for t in group.trajectories] == [1, 0, 0]
    assert [t.truncated for t in group.trajectories] == [False, False, True]
    assert {t.adapter_version for t in group.trajectories} == {3}


async def test_the_base_has_no_adapter_version(worker: EnvironmentWorker) -> None:
    group = (await run(worker, spec(Numeric()), BASE)).group
    assert {t.adapter_version for t in group.trajectories} == {None}


JUDGED = Mix(
    parts=[
        MixPart(name="verdict", grader=Judge(prompt="Is {{ sample.completion }} right?")),
        MixPart(name="right", grader=Numeric()),
    ]
)


async def test_a_judge_is_drawn_from_the_base_for_the_job_and_counted(tiny_model: Path, rollout: FakeRollout) -> None:
    async def draw(request: RolloutRequest) -> list[Completion]:
        if request.policy != BASE:
            return await rollout(request)
        assert request.job_id == JOB
        return [Completion([7, 2], [0.0, 0.0], "5", "stop", "base")]

    worker = EnvironmentWorker(tiny_model, 2, draw)
    result = await run(worker, spec(JUDGED))
    await worker.close()
    assert [t.score.total for t in result.group.trajectories] == [0.75, 0.25, 0.25]
    assert [t.score.judge_tokens for t in result.group.trajectories] == [2, 2, 2]
    assert {t.adapter_version for t in result.group.trajectories} == {3}
    sampled = [span for span in result.spans if span.stage == "rollout"]
    assert sum(span.tokens for span in sampled) == 9 + 6


async def test_spans_cover_rollout_then_grading(worker: EnvironmentWorker) -> None:
    sampling, grading = (await run(worker, spec(Numeric()))).spans
    assert (sampling.stage, sampling.tokens, grading.stage, grading.tokens) == ("rollout", 9, "environment", 0)
    assert sampling.start < sampling.end <= grading.start < grading.end


async def test_one_failing_grading_does_not_fail_its_group(worker: EnvironmentWorker, rollout: FakeRollout) -> None:
    rollout.texts = ("aaaa", "a" * 60 + "b", "aaa")
    trajectories = (await run(worker, spec(Regex(pattern="^(a+)+$"), limit=1))).group.trajectories
    assert [t.score.total for t in trajectories] == [1, 0, 1]
    assert [t.score.error for t in trajectories] == [False, True, False]
    assert trajectories[1].score.reason.startswith("timed out after 1 s")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"policy": f"job-{JOB}@v2"}, f"policy job-{JOB}@v3, got job-{JOB}@v2"),
        ({"logprobs": [-0.1]}, "not one log-probability for each"),
        ({"token_ids": [], "logprobs": []}, "no tokens"),
    ],
)
async def test_what_was_not_asked_for_is_refused(
    worker: EnvironmentWorker, rollout: FakeRollout, change: dict, says: str
) -> None:
    rollout.change = lambda completion: dataclasses.replace(completion, **change)
    with pytest.raises(ValueError, match=says):
        await run(worker, spec(Numeric()))


async def test_a_wrong_number_of_completions_is_refused(worker: EnvironmentWorker) -> None:
    with pytest.raises(ValueError, match="for 4 completions, got 3"):
        await run(worker, spec(Numeric()), n=4)


async def test_a_failing_rollout_fails_the_group(tmp_path: Path) -> None:
    async def broken(request: RolloutRequest) -> list[Completion]:
        raise RuntimeError("no slot")

    worker = EnvironmentWorker(tmp_path, 2, broken)
    with pytest.raises(RuntimeError, match="no slot"):
        await run(worker, spec(Numeric()))


async def test_anything_that_can_be_awaited_serves_as_rollout(tmp_path: Path, rollout: FakeRollout) -> None:
    """As a Ray actor's method does, which returns a reference and no coroutine."""
    worker = EnvironmentWorker(tmp_path, 2, lambda request: asyncio.ensure_future(rollout(request)))
    assert len((await run(worker, spec(Numeric()))).group.trajectories) == 3
    await worker.close()


async def test_cancelling_a_group_cancels_its_rollout(tmp_path: Path) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(request: RolloutRequest) -> list[Completion]:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return []

    group = asyncio.create_task(run(EnvironmentWorker(tmp_path, 2, slow), spec(Numeric())))
    await started.wait()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert cancelled.is_set()


async def test_cancelling_a_group_drops_its_gradings_that_wait(worker: EnvironmentWorker, rollout: FakeRollout) -> None:
    rollout.texts = ("a" * 60 + "b",) * 3
    group = asyncio.create_task(run(worker, spec(Regex(pattern="^(a+)+$"), limit=2)))
    await asyncio.sleep(0.3)  # one grading runs, two wait
    group.cancel()
    rollout.texts = ("42", "42", "42")
    trajectories = (await run(worker, spec(Numeric()))).group.trajectories
    assert [t.score.total for t in trajectories] == [1, 1, 1]
    assert not worker._scorer.graders._queue._queues
