"""A model as the judge: what it is asked, and how its reply is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.chat import ChatRenderer
from engine.rewards.graders import GraderError
from engine.rewards.judge import judge, read_reply
from engine.spec import DatasetRow, Judge, Message
from engine.types import BASE, Completion, RolloutRequest, Sample, Score

ROW = DatasetRow(messages=[Message(role="user", content="6 * 7?")], answer="42")
VERDICTS = Judge(labels={"good": 1, "fair": 0.4, "not good": 0})


@pytest.mark.parametrize(
    ("grader", "reply", "expected"),
    [
        (Judge(), "7", 0.7),
        (Judge(), " Score: 10.", 1.0),
        (Judge(), "0", 0.0),
        (Judge(), "I give it 8/10", 0.8),
        (Judge(), "8.5 out of 10", 0.85),
        (Judge(), "10/10.", 1.0),
        (Judge(), "8 / 10.0", 0.8),
        (Judge(low=1, high=5), "2", 0.25),
        (Judge(low=1, high=5), "4/5", 0.75),
        (Judge(low=-1, high=1), "-1", 0.0),
        (VERDICTS, "Good.", 1.0),
        (VERDICTS, "This is not good", 0.0),
        (VERDICTS, "good at first, but fair", 0.4),
    ],
)
def test_a_reply_is_read(grader: Judge, reply: str, expected: float) -> None:
    assert read_reply(grader, reply) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("grader", "reply", "says"),
    [
        (Judge(), "very good", "no number"),
        (Judge(), "11", "not from 0 to 10"),
        (Judge(), "-1", "not from 0 to 10"),
        (Judge(), "8/100", "0.08"),
        (VERDICTS, "goodness", "none of good, fair, not good"),
        (VERDICTS, "", "none of good"),
    ],
)
def test_a_reply_that_says_nothing_is_an_error(grader: Judge, reply: str, says: str) -> None:
    if says == "0.08":  # another scale than asked for is a fraction
        assert read_reply(grader, reply) == pytest.approx(0.008)
        return
    with pytest.raises(GraderError) as error:
        read_reply(grader, reply)
    assert says in str(error.value)


def test_a_number_that_was_cut_off_is_not_believed() -> None:
    with pytest.raises(GraderError, match="cut off at 32 tokens"):
        read_reply(Judge(), "1", cut=True)
    assert read_reply(Judge(), "1 because", cut=True) == pytest.approx(0.1)


class Rollout:
    def __init__(self, text: str, **change: Any) -> None:
        self.text, self.change = text, change
        self.requests: list[RolloutRequest] = []

    async def __call__(self, request: RolloutRequest) -> list[Completion]:
        self.requests.append(request)
        answer = {"token_ids": [5, 6, 2], "logprobs": [0.0] * 3, "finish_reason": "stop", "policy": "base"}
        return [Completion(text=self.text, **{**answer, **self.change})]


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> ChatRenderer:
    return ChatRenderer(tiny_model)


async def ask(grader: Judge, rollout: Rollout, renderer: ChatRenderer, context: int = 4096, text: str = "42") -> Score:
    return await judge(grader, Sample(ROW, text), rollout, renderer, job_id="a job", context_length=context)


async def test_the_base_is_asked_once_for_the_job(renderer: ChatRenderer) -> None:
    rollout = Rollout("9")
    grader = Judge(prompt="{{ row.prompt }} {{ sample.completion }}?", system_prompt="Judge of {{ row.answer }}")
    score = await ask(grader, rollout, renderer)
    (request,) = rollout.requests
    assert (request.policy, request.n, request.max_tokens, request.temperature) == (BASE, 1, 32, 0.0)
    assert request.job_id == "a job"
    asked = Message(role="user", content="6 * 7? 42?")
    assert request.prompt_ids == renderer.prompt_ids([asked], "Judge of 42")
    assert score.total == pytest.approx(0.9)
    assert (score.reason, score.judge_tokens, score.error) == ("the judge said '9'", 3, False)


async def test_the_same_sample_is_asked_with_the_same_seed(renderer: ChatRenderer) -> None:
    rollout = Rollout("9")
    for text in ("42", "42", "43"):
        await ask(Judge(temperature=1), rollout, renderer, text=text)
    one, again, other = (request.seed for request in rollout.requests)
    assert one == again != other


async def test_a_reply_that_cannot_be_read_is_an_error_and_still_costs(renderer: ChatRenderer) -> None:
    score = await ask(Judge(), Rollout("no idea"), renderer)
    assert (score.total, score.error, score.error_kind, score.judge_tokens) == (0, True, "grader", 3)
    assert score.reason == "the judge said 'no idea': that has no number in it"
    assert score.details == "no idea"


async def test_a_prompt_that_does_not_fit_is_an_error_and_costs_nothing(renderer: ChatRenderer) -> None:
    rollout = Rollout("9")
    score = await ask(Judge(), rollout, renderer, context=64)
    assert score.error and score.error_kind == "grader" and not rollout.requests
    assert "leaves no room for a reply of 32 in the context of 64" in score.reason


async def test_a_value_that_is_missing_is_an_error(renderer: ChatRenderer) -> None:
    score = await ask(Judge(prompt="{{ sample.completion }} {{ row.metadata.x }}"), Rollout("9"), renderer)
    assert score.error and score.reason == "row.metadata.x is not there"


async def test_another_policy_than_the_base_is_refused(renderer: ChatRenderer) -> None:
    with pytest.raises(ValueError, match="one completion of the base"):
        await ask(Judge(), Rollout("9", policy="job-1@v1"), renderer)
