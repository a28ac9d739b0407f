"""The environment worker: runs groups of episodes, from prompt to graded trajectories.

Invariants: a trajectory's token ids and log-probabilities are those of the completion, untouched, and a completion of
any other policy than the one asked for is refused; a grading that fails scores 0 as an error and never fails its group;
cancelling a group cancels the rollout it waits for and its gradings still queued.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from engine.environments.single_turn import SingleTurnEnvironment
from engine.events import Span
from engine.rewards.runner import GraderPool
from engine.spec import DatasetRow, JobSpec
from engine.types import AdapterRef, Completion, Group, Policy, RolloutRequest, Trajectory

Rollout = Callable[[RolloutRequest], Awaitable[list[Completion]]]
"""Draws completions. A coroutine function, or anything whose result can be awaited, such as a Ray actor's method."""

ENVIRONMENT = SingleTurnEnvironment()


@dataclass(frozen=True)
class GroupResult:
    """A complete group and where its time went."""

    group: Group
    spans: list[Span]
    """One of stage ``rollout`` (with the tokens sampled), then one of stage ``environment`` (episodes and grading)."""


class EnvironmentWorker:
    """Runs any number of groups of any jobs at once, all in one event loop; wrap it with ``ray.remote`` as it is."""

    def __init__(self, model_dir: str | Path, grader_workers: int, rollout: Rollout) -> None:
        self._rollout = rollout
        self._graders = GraderPool(grader_workers)

    async def run_group(
        self,
        spec: JobSpec,
        policy: Policy,
        row_index: int,
        row: DatasetRow,
        prompt_ids: list[int],
        n: int,
        temperature: float,
        seed: int,
    ) -> GroupResult:
        """Let ``n`` episodes answer one prompt and grade them.

        Args:
            policy: draws every token of the group.
            row_index: line of the dataset file, counted from 0.
            prompt_ids: the rendered prompt.
            temperature: 0 means greedy.

        Raises:
            ValueError: the rollout answered with something else than ``n`` completions of this policy.
            Whatever the rollout raises.
        """
        request = RolloutRequest(
            policy=policy,
            prompt_ids=prompt_ids,
            n=n,
            max_tokens=spec.sampling.max_tokens,
            temperature=temperature,
            seed=seed,
            job_id=spec.job_id,
        )
        start = time.time()
        completions = await self._rollout(request)
        sampled = time.time()
        _check(request, completions)
        trajectories = await asyncio.gather(
            *(self._finish(spec, policy, row, completion) for completion in completions)
        )
        end = time.time()
        tokens = sum(len(completion.token_ids) for completion in completions)
        return GroupResult(
            Group(
                row=row_index,
                prompt_ids=prompt_ids,
                prompt_text=row.messages[-1].content,
                answer=row.answer,
                trajectories=trajectories,
            ),
            [
                Span(stage="rollout", worker="rollout", start=start, end=sampled, tokens=tokens),
                Span(stage="environment", worker="environment", start=sampled, end=end),
            ],
        )

    async def close(self) -> None:
        """End the grading processes."""
        await self._graders.close()

    async def _finish(self, spec: JobSpec, policy: Policy, row: DatasetRow, completion: Completion) -> Trajectory:
        """Play an episode on from its first reply, and grade it."""
        observation = await ENVIRONMENT.start(row).reply(completion.text)
        assert observation.done, "only single-turn environments are in the contract"
        score = await self._graders.score(spec.reward, completion.text, row, owner=spec.job_id)
        return Trajectory(
            token_ids=completion.token_ids,
            loss_mask=[True] * len(completion.token_ids),
            logprobs=completion.logprobs,
            adapter_version=policy.version if isinstance(policy, AdapterRef) else None,
            text=completion.text,
            truncated=completion.finish_reason == "length",
            score=score,
        )


def _check(request: RolloutRequest, completions: list[Completion]) -> None:
    if len(completions) != request.n:
        raise ValueError(f"asked the rollout for {request.n} completions, got {len(completions)}")
    for completion in completions:
        if completion.policy != request.policy.name:
            raise ValueError(f"asked the rollout for policy {request.policy.name}, got {completion.policy}")
        if not completion.token_ids or len(completion.token_ids) != len(completion.logprobs):
            raise ValueError("the rollout returned no tokens, or not one log-probability for each")
