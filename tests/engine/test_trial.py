"""Reward trials, with real grading processes; the base model's pool is one that answers from a list."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine import trial as trial_module
from engine.pool import PoolError
from engine.spec.trial import FINISHED_TRIALS, RewardTrialSpec, TrialReport
from engine.trial import TrialGrader, Trials
from engine.types import Completion, RolloutRequest

ROW = {"messages": [{"role": "user", "content": "1+1?"}], "answer": "2"}
MODEL = {"id": "tiny", "source": "local", "location": "/nowhere", "context_length": 16}
NUMERIC = {"grader": {"type": "numeric"}}
NEVER = {"grader": {"type": "regex", "pattern": "(a+)+$"}, "timeout_seconds": 0.3}


class FakePool:
    """Answers each prompt's samples with the numbers 1, 2, 3, ..."""

    model_dir = "/nowhere"

    def __init__(self) -> None:
        self.requests: list[RolloutRequest] = []
        self.shares: list[tuple[str, ...]] = []
        self.hang = False
        self.asked = asyncio.Event()

    def register_share(self, owner: str, tenant_id: str, weight: float) -> None:
        self.shares.append((owner, tenant_id))

    def forget_share(self, owner: str, tenant_id: str) -> float:
        self.shares.remove((owner, tenant_id))
        return 1.5

    async def generate(self, request: RolloutRequest) -> list[Completion]:
        self.requests.append(request)
        self.asked.set()
        if self.hang:
            await asyncio.Event().wait()
        return [
            Completion([5, 6], [0.0, 0.0], f"It is {n}.", "length" if n == 1 else "stop", "base")
            for n in range(1, request.n + 1)
        ]


class FakeRenderer:
    def __init__(self, model_dir: str) -> None: ...

    def prompt_ids(self, messages: Any, system_prompt: str = "") -> list[int]:
        return [1, 2]

    def render(self, rows: Any, system_prompt: str = "") -> list[list[int]]:
        return [list(range(len(system_prompt) + len(row.messages[0].content))) for _, row in rows]


@pytest.fixture
async def grader(pool: FakePool) -> AsyncIterator[TrialGrader]:
    grader = TrialGrader(2, lambda model_id: pool.generate)
    yield grader
    await grader._scorer.close()


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def trials(grader: TrialGrader, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> Trials:
    monkeypatch.setattr(trial_module, "chat_renderer", FakeRenderer)

    async def start_pool(model: Any) -> Any:
        if model.id == "broken":
            raise PoolError("Base model broken cannot be served.")
        return pool

    return Trials(start_pool, grader.score)


def make(**changes: Any) -> dict[str, Any]:
    cases = [{"row": ROW, "completions": ["2", "3"]}]
    return {"trial_id": uuid.uuid4().hex, "tenant_id": "t", "reward": NUMERIC, "cases": cases, **changes}


def sampled(**changes: Any) -> dict[str, Any]:
    sampling = {"base_model": MODEL, "samples": 3, "max_tokens": 100, **changes}
    return make(cases=[{"row": ROW, "number": 7}, {"row": ROW, "number": 9}], sampling=sampling)


async def finish(trials: Trials, spec: dict[str, Any]) -> list[TrialReport]:
    """Every report of a trial that is seen up to its last."""
    trials.start(spec["trial_id"], spec)
    seen: list[TrialReport] = []
    after = 0
    while not seen or seen[-1].state not in FINISHED_TRIALS:
        after, reports = await trials.next_reports(after, 30)
        assert reports, "no report came"
        seen += [report for report in reports if report.trial_id == spec["trial_id"]]
    return seen


async def test_given_completions_are_scored_without_a_base_model(trials, pool):
    reports = await finish(trials, make())
    last = reports[-1]
    assert (last.state, last.done, last.sampled_tokens) == ("done", 2, 0)
    assert [[score.total for score in group] for group in last.scores] == [[1.0, 0.0]]
    assert last.scores[0][1].completion == "3"
    assert [report.sequence for report in reports] == sorted({report.sequence for report in reports})
    assert pool.requests == []


async def test_fresh_samples_of_every_row_are_scored_and_counted(trials, pool):
    last = (await finish(trials, sampled(seed=5)))[-1]
    assert last.state == "done"
    assert [[score.total for score in group] for group in last.scores] == [[0.0, 1.0, 0.0]] * 2
    assert [score.truncated for score in last.scores[0]] == [True, False, False]
    assert (last.sampled_tokens, last.accelerator_seconds) == (12, 1.5)
    assert [(request.n, request.seed, request.policy.name) for request in pool.requests] == [
        (3, 5, "base"), (3, 6, "base"),
    ]  # fmt: skip
    assert {request.max_tokens for request in pool.requests} == {12}, "16 of context less 4 of prompt"
    assert pool.shares == []


async def test_a_prompt_that_fills_the_context_names_its_line(trials):
    last = (await finish(trials, sampled(system_prompt="x" * 12)))[-1]
    assert (last.state, last.reason) == (
        "failed", "The prompt in line 8 has 16 tokens; base model tiny takes 16.",
    )  # fmt: skip


async def test_a_base_model_that_does_not_start_fails_with_its_reason(trials):
    last = (await finish(trials, sampled(base_model={**MODEL, "id": "broken"})))[-1]
    assert (last.state, last.reason) == ("failed", "Base model broken cannot be served.")


async def test_a_reward_that_hangs_is_an_error_of_that_completion(trials):
    spec = make(reward=NEVER, cases=[{"row": ROW, "completions": ["a" * 40 + "b", "aaa"]}])
    last = (await finish(trials, spec))[-1]
    assert last.state == "done"
    assert [score.error for score in last.scores[0]] == [True, False]
    assert "timed out" in last.scores[0][0].reason


async def test_asked_again_it_reports_again_and_runs_once(trials, pool):
    spec = sampled()
    last = (await finish(trials, spec))[-1]
    trials.start(spec["trial_id"], spec)
    _, (again,) = await trials.next_reports(last.sequence, 1)
    assert again.sequence > last.sequence
    assert again.model_copy(update={"sequence": last.sequence}) == last
    assert len(pool.requests) == 2


async def test_cancelling_ends_it_and_frees_its_share(trials, pool):
    pool.hang = True
    spec = sampled()
    trials.start(spec["trial_id"], spec)
    await pool.asked.wait()
    trials.cancel(spec["trial_id"])
    last = (await finish(trials, spec))[-1]
    assert (last.state, pool.shares) == ("cancelled", [])
    trials.cancel(spec["trial_id"])
    trials.cancel("unknown")


async def test_past_its_limit_it_fails(trials, pool):
    pool.hang = True
    last = (await finish(trials, {**sampled(), "limit_seconds": 0.05}))[-1]
    assert last.state == "failed"
    assert last.reason.startswith("Stopped after 0.05 s.")
    assert pool.shares == []


async def test_no_news_is_an_empty_answer(trials):
    assert await trials.next_reports(0, 0.01) == (0, [])


async def test_an_invalid_trial_fails_with_the_field(trials):
    last = (await finish(trials, make(cases=[])))[-1]
    assert last.state == "failed"
    assert last.reason.startswith("Invalid trial: cases:")


def test_without_sampling_every_row_needs_completions():
    with pytest.raises(ValueError, match="every row needs completions"):
        RewardTrialSpec.model_validate(make(cases=[{"row": ROW}]))


async def test_a_trial_nobody_waits_for_any_more_is_not_run(trials, pool):
    last = (await finish(trials, {**sampled(), "ask_until": 1.0}))[-1]
    assert (last.state, last.reason) == ("failed", "The engine was not up in time. Start the test again.")
    assert pool.requests == []


async def test_the_base_model_judges_given_completions_and_its_tokens_count(trials, pool):
    judge = {"grader": {"type": "judge", "low": 0, "high": 2, "prompt": "{{ sample.completion }}", "max_tokens": 4}}
    spec = make(reward=judge, sampling={"base_model": MODEL})
    last = (await finish(trials, spec))[-1]
    assert last.state == "done", last.reason
    assert [score.total for score in last.scores[0]] == [0.5, 0.5], "the judge says 1 of 0 to 2"
    assert (last.sampled_tokens, {request.job_id for request in pool.requests}) == (4, {spec["trial_id"]})


async def test_a_judge_without_a_base_model_says_what_is_missing(trials):
    last = (await finish(trials, make(reward={"grader": {"type": "judge"}})))[-1]
    assert "none is at hand here" in last.scores[0][0].reason


async def test_tenant_python_shows_its_parts_its_console_and_the_line_of_its_error(trials):
    code = (
        "def reward(completion, row):\n"
        "    print('saw', completion)\n"
        "    right = completion == row['answer']\n"
        "    return {'total': 1 / len(completion), 'right': right}\n"
    )
    spec = make(reward={"grader": {"type": "python", "code": code}}, cases=[{"row": ROW, "completions": ["2", ""]}])
    good, bad = (await finish(trials, spec))[-1].scores[0]
    if good.error_kind == "refused":
        pytest.skip(good.reason)
    assert (good.total, good.parts, good.console) == (1.0, {"right": 1.0}, "saw 2\n")
    assert (bad.total, bad.error, bad.error_kind) == (0.0, True, "exception")
    assert "line 4" in bad.details
    assert "ZeroDivisionError" in bad.details
