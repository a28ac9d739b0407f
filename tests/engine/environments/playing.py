"""A job of several turns and a model that says given texts, as token ids of a real tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from engine.chat import ChatRenderer
from engine.environments.protocol import Environment, Observation, Role, TurnMessage
from engine.environments.worker import EnvironmentWorker, GroupResult
from engine.spec import BaseModelSpec, DatasetRef, DatasetRow, JobSpec, Message, Numeric, RewardSpec, SamplingSettings
from engine.types import AdapterRef, Completion, RolloutRequest
from tests.engine.tiny import CONTEXT_LENGTH

JOB = "0" * 31 + "1"
ADAPTER = AdapterRef(job_id=JOB, version=3, lora_id=7, path="/adapters/3", sha256="0" * 64)
ROW = DatasetRow(messages=[Message(role="user", content="What is 6 * 7?")], answer="42")
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'


def job(environment: Any, *, grader: Any = None, max_tokens: int = 90, context: int = CONTEXT_LENGTH) -> JobSpec:
    return JobSpec(
        job_id=JOB,
        tenant_id="acme",
        base_model=BaseModelSpec(id="tiny", location="tiny", context_length=context),
        dataset=DatasetRef(path="/rows", sha256="0" * 64, train_rows=1, held_out_rows=0),
        reward=RewardSpec(grader=grader or Numeric()),
        environment=environment,
        sampling=SamplingSettings(max_tokens=max_tokens),
    )


class Model:
    """A rollout whose episode ``i`` says ``scripts[i]``, one text a turn; a text that ends in ``...`` is cut off.

    Which episode a later request belongs to shows in its prompt, which holds that episode's own earlier ids.
    """

    def __init__(self, renderer: ChatRenderer, *scripts: Sequence[str]) -> None:
        self.renderer = renderer
        self.scripts = scripts
        self.requests: list[RolloutRequest] = []
        self.completions: list[list[Completion]] = [[] for _ in scripts]

    async def __call__(self, request: RolloutRequest) -> list[Completion]:
        self.requests.append(request)
        await asyncio.sleep(0)
        if len(self.requests) == 1:
            return [self._say(index, request) for index in range(request.n)]
        return [self._say(self._episode(request), request)]

    def _episode(self, request: RolloutRequest) -> int:
        first = len(self.requests[0].prompt_ids)
        for index, said in enumerate(self.completions):
            ids = said[0].token_ids
            if request.prompt_ids[first : first + len(ids)] == ids and len(said) < len(self.scripts[index]):
                return index
        raise AssertionError("a prompt that continues no episode")

    def _say(self, index: int, request: RolloutRequest) -> Completion:
        text = self.scripts[index][len(self.completions[index])]
        ids = self.renderer._tokenizer.encode(text, add_special_tokens=False)
        cut = text.endswith("...")
        if not cut:
            ids.append(self.renderer._tokenizer.eos_token_id)
        assert len(ids) <= request.max_tokens, "a longer reply than was asked for"
        completion = Completion(
            token_ids=ids,
            logprobs=[-(index + 1) - place / 1000 for place in range(len(ids))],
            text=text,
            finish_reason="length" if cut else "stop",
            policy=request.policy.name,
        )
        self.completions[index].append(completion)
        return completion


async def play(
    worker: EnvironmentWorker, spec: JobSpec, model: Model, row: DatasetRow = ROW, instructions: str = ""
) -> GroupResult:
    """One group, as many episodes as the model has scripts."""
    prompt_ids = model.renderer.prompt_ids(row.messages, spec.environment.system_prompt, instructions)
    return await worker.run_group(spec, ADAPTER, 5, row, prompt_ids, len(model.scripts), 0.7, 99)


class Scripted:
    """An environment made of one function: (text, turn counted from 1) -> what it says, or None to end."""

    roles: frozenset[Role] = frozenset({"user"})

    def __init__(self, answer: Callable[[str, int], Any], opening: str = "") -> None:
        self.answer = answer
        self.opening = opening
        self.episodes: list[ScriptedEpisode] = []

    async def start(self, row: DatasetRow, seed: int) -> ScriptedEpisode:
        episode = ScriptedEpisode(self)
        self.episodes.append(episode)
        return episode


class ScriptedEpisode:
    def __init__(self, environment: Scripted) -> None:
        self.environment = environment
        self.opening = [TurnMessage("user", environment.opening)] if environment.opening else []
        self.turn = 0
        self.closed = 0

    async def reply(self, text: str) -> Observation:
        self.turn += 1
        said = self.environment.answer(text, self.turn)
        if asyncio.iscoroutine(said):
            said = await said
        if isinstance(said, Observation):
            return said
        if said is None:
            return Observation([], done=True, parts={"reward": 0.25 * self.turn})
        return Observation([TurnMessage("user", said)], done=False, parts={"reward": 0.25 * self.turn})

    async def close(self) -> None:
        self.closed += 1


def put_in(worker: EnvironmentWorker, environment: Environment) -> None:
    """Have the worker play this environment for every job."""

    async def get(spec: JobSpec) -> Environment:
        return environment

    worker._environments.get = get  # type: ignore[method-assign]
