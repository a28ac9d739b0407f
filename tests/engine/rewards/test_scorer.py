"""Each grader goes where it runs, and what comes back is one score. Grading processes are real, the sandbox is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from engine.chat import ChatRenderer
from engine.rewards.scorer import JudgeModel, Scorer, needs_group
from engine.spec import (
    Brevity,
    CodeTests,
    DatasetRow,
    ExactMatch,
    Judge,
    Message,
    Mix,
    MixPart,
    Numeric,
    Python,
    RewardSpec,
    SimpleGrader,
)
from engine.types import Completion, RolloutRequest, Sample, Score

ROW = DatasetRow(messages=[Message(role="user", content="6 * 7?")], answer="42")
CODE = Python(code="def reward(completion): return len(completion) / 10")
BATCH = Python(code="def rewards(samples): return [0] * len(samples)", function="rewards", batch=True)


class FakeSandbox:
    """Scores by the completion's length, and notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str, str, float]] = []
        self.waits = 0.0
        self.cancelled = self.closed = 0

    async def score_batch(
        self, grader: Python | CodeTests, samples: Sequence[Sample], *, tenant: str, owner: str, timeout: float
    ) -> list[Score]:
        self.calls.append((grader.type, len(samples), tenant, owner, timeout))
        try:
            await asyncio.sleep(self.waits)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(grader, Python) and grader.batch:
            return [Score(index / 10) for index, _ in enumerate(samples)]
        lengths = [float(len(sample.completion)) for sample in samples]
        return [Score(length / 10, {"length": length}, console="ran") for length in lengths]

    async def close(self) -> None:
        self.closed += 1


@pytest_asyncio.fixture
async def sandbox() -> FakeSandbox:
    return FakeSandbox()


@pytest_asyncio.fixture
async def scorer(sandbox: FakeSandbox) -> AsyncIterator[Scorer]:
    scorer = Scorer(2, lambda: sandbox)
    yield scorer
    await scorer.close()


def mix(formula: str | None = None, **graders: SimpleGrader) -> RewardSpec:
    parts = [MixPart(name=name, grader=grader) for name, grader in graders.items()]
    return RewardSpec(grader=Mix(parts=parts, formula=formula), timeout_seconds=7)


async def score(scorer: Scorer, reward: RewardSpec, *completions: str, model: JudgeModel | None = None) -> list[Score]:
    samples = [Sample(ROW, completion) for completion in completions]
    return await scorer.score_group(reward, samples, tenant="acme", owner="job", judge_model=model)


async def test_a_declarative_grader_needs_no_sandbox(scorer: Scorer, sandbox: FakeSandbox) -> None:
    scores = await score(scorer, RewardSpec(grader=Numeric()), "42", "41", "It is 42.")
    assert [one.total for one in scores] == [1, 0, 1]
    assert scorer._sandbox is None
    one = await scorer.score(RewardSpec(grader=Numeric()), Sample(ROW, "42"), tenant="acme", owner="job")
    assert one.total == 1


async def test_each_part_goes_where_it_runs_and_keeps_its_place(scorer: Scorer, sandbox: FakeSandbox) -> None:
    reward = mix(code=CODE, right=Numeric(), tests=CodeTests(), exact=ExactMatch())
    first, second = await score(scorer, reward, "42", "= 42")
    assert first.parts == {"code": 0.2, "code_length": 2, "right": 1, "tests": 0.2, "tests_length": 2, "exact": 1}
    assert first.total == pytest.approx((0.2 + 1 + 0.2 + 1) / 4)
    assert second.parts["exact"] == 0 and second.parts["code"] == 0.4
    assert first.console == "code: ran\n\ntests: ran"
    assert sorted(sandbox.calls) == [("code_tests", 2, "acme", "job", 7), ("python", 2, "acme", "job", 7)]


async def test_a_batch_function_gets_the_group_in_one_call(scorer: Scorer, sandbox: FakeSandbox) -> None:
    reward = mix("max(batch, right)", batch=BATCH, right=Numeric())
    assert needs_group(reward) and not needs_group(mix(code=CODE))
    scores = await score(scorer, reward, "1", "2", "42")
    assert [one.total for one in scores] == pytest.approx([0, 0.1, 1])
    assert sandbox.calls == [("python", 3, "acme", "job", 7)]


async def test_what_a_sandbox_says_is_range_checked(scorer: Scorer) -> None:
    (lying,) = await score(scorer, RewardSpec(grader=CODE), "x" * 20)
    assert (lying.total, lying.error, lying.error_kind) == (0, True, "out_of_range")


async def test_the_judge_is_asked_for_each_sample_while_others_grade(scorer: Scorer, tiny_model: Path) -> None:
    requests: list[RolloutRequest] = []

    async def rollout(request: RolloutRequest) -> list[Completion]:
        requests.append(request)
        text = str(len(requests))
        return [Completion([1, 2], [0.0, 0.0], text, "stop", request.policy.name)]

    async def renderer() -> ChatRenderer:
        return ChatRenderer(tiny_model)

    reward = mix("verdict * right", verdict=Judge(), right=Numeric())
    scores = await score(scorer, reward, "42", "is 42", "7", model=JudgeModel(rollout, renderer, 4096))
    assert [one.total for one in scores] == pytest.approx([0.1, 0.2, 0])
    assert [one.judge_tokens for one in scores] == [2, 2, 2]
    assert {request.job_id for request in requests} == {"job"} and len(requests) == 3


async def test_without_a_model_the_judge_is_an_error(scorer: Scorer) -> None:
    (one,) = await score(scorer, mix(verdict=Judge(), short=Brevity(target=1, limit=9)), "42")
    assert (one.total, one.error, one.error_kind) == (0, True, "grader")
    assert "test with fresh samples" in one.reason


async def test_cancelling_cancels_what_is_waited_for(scorer: Scorer, sandbox: FakeSandbox) -> None:
    sandbox.waits = 60
    task = asyncio.create_task(score(scorer, mix(code=CODE, right=Numeric()), "1", "2"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sandbox.cancelled == 1


async def test_closing_ends_the_sandbox_too(sandbox: FakeSandbox) -> None:
    scorer = Scorer(2, lambda: sandbox)
    await score(scorer, RewardSpec(grader=CODE), "1")
    await scorer.close()
    assert sandbox.closed == 1
