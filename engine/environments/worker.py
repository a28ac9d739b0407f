"""The environment worker: runs groups of episodes, from prompt to graded trajectories.

Invariants: a trajectory's token ids and log-probabilities are those of the completions, untouched, and a completion of
any other policy than the one asked for is refused; a grading or an environment that fails scores 0 as an error and
never fails its group; cancelling a group cancels the rollouts it waits for and its gradings still queued. An episode
costs no thread, however long its environment takes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.actors import gather_or_cancel
from engine.chat import ChatRenderer
from engine.environments.factory import Environments
from engine.environments.protocol import EpisodeError
from engine.environments.reasoning_gym import with_own_scorer
from engine.environments.timing import EpisodeSeconds, StageTimes
from engine.environments.turns import Stepper, Transcript, next_turn, open_prompt, turn_seed
from engine.events import Span
from engine.rewards.graders import ENVIRONMENT_PARTS
from engine.rewards.judge import Rollout
from engine.rewards.scorer import JudgeModel, Scorer, needs_group
from engine.spec import DatasetRow, JobSpec, MultiTurn
from engine.types import AdapterRef, Completion, Group, Policy, RolloutRequest, Sample, Score, Trajectory


@dataclass(frozen=True)
class GroupResult:
    """A complete group and where its time went."""

    group: Group
    spans: list[Span]
    """Those of stage ``rollout`` (with the tokens sampled, a judge's included), then those of stage ``environment``
    (episodes and grading): the times in which any episode was in it."""
    episode_seconds: EpisodeSeconds
    """Time in each stage, added up over the episodes."""


class EnvironmentWorker:
    """Runs any number of groups of any jobs at once, all in one event loop; wrap it with ``ray.remote`` as it is."""

    def __init__(
        self,
        model_dir: str | Path,
        grader_workers: int,
        rollout: Rollout,
        *,
        tenant_files: Path | None = None,
        allow_private: bool = False,
    ) -> None:
        """
        Args:
            model_dir: folder of the base model, for its tokenizer and chat template.
            tenant_files: folder of what tenants uploaded for their environments; see ``engine.environments.files``.
            allow_private: remote environments may have private, loopback and link-local addresses.
        """
        self._rollout = rollout
        self._scorer = Scorer(grader_workers)
        self._environments = Environments(tenant_files, allow_private, self._scorer.sandbox)
        self._model_dir = model_dir
        self._renderer: asyncio.Future[ChatRenderer] | None = None
        self._closing: set[asyncio.Task[None]] = set()

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
            DatasetError: what the environment needs is not there or cannot be used.
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
        times = StageTimes()
        if isinstance(spec.environment, MultiTurn):
            group = await self._several_turns(spec, spec.environment, row_index, row, request, times)
        else:
            group = await self._single_turn(spec, row_index, row, request, times)
        return GroupResult(group, times.spans(), times.episode_seconds)

    async def close(self) -> None:
        """End the grading processes, the sandbox and the connections to environments."""
        await asyncio.gather(*self._closing)
        await self._environments.close()
        await self._scorer.close()

    async def _draw(self, request: RolloutRequest, times: StageTimes) -> list[Completion]:
        start = time.time()
        completions = await self._rollout(request)
        _check(request, completions)
        tokens = sum(len(completion.token_ids) for completion in completions)
        times.add("rollout", start, time.time(), tokens, episodes=request.n, worker=completions[0].worker)
        return completions

    # --- a single turn ---

    async def _single_turn(
        self, spec: JobSpec, row_index: int, row: DatasetRow, request: RolloutRequest, times: StageTimes
    ) -> Group:
        completions = await self._draw(request, times)
        sampled = time.time()
        samples = [Sample(row, completion.text) for completion in completions]
        scores = await self._score_group(spec, samples, times)
        times.add("environment", sampled, time.time(), episodes=len(samples))
        trajectories = [
            Trajectory(
                token_ids=completion.token_ids,
                loss_mask=[True] * len(completion.token_ids),
                logprobs=completion.logprobs,
                adapter_version=_version(request.policy),
                text=completion.text,
                truncated=completion.finish_reason == "length",
                score=score,
            )
            for completion, score in zip(completions, scores, strict=True)
        ]
        return _group(row_index, row, request.prompt_ids, trajectories)

    async def _score_group(self, spec: JobSpec, samples: Sequence[Sample], times: StageTimes) -> list[Score]:
        async def rollout(request: RolloutRequest) -> list[Completion]:
            return await self._draw(request, times)

        return await self._scorer.score_group(
            with_own_scorer(spec.reward, spec.environment),
            samples,
            tenant=spec.tenant_id,
            owner=spec.job_id,
            judge_model=JudgeModel(rollout, self._get_renderer, spec.base_model.context_length),
        )

    # --- several turns ---

    async def _several_turns(
        self,
        spec: JobSpec,
        settings: MultiTurn,
        row_index: int,
        row: DatasetRow,
        request: RolloutRequest,
        times: StageTimes,
    ) -> Group:
        environment = await self._environments.get(spec)
        renderer = await self._get_renderer()
        steppers = [Stepper(settings, times) for _ in range(request.n)]
        try:
            await asyncio.gather(*(stepper.open(environment, row, request.seed) for stepper in steppers))
            context = spec.base_model.context_length
            row, prompt_ids = open_prompt(steppers, row, request.prompt_ids, settings, renderer, context)
            room = context - len(prompt_ids)
            if settings.max_episode_tokens:
                room = min(room, settings.max_episode_tokens)
            request = dataclasses.replace(
                request, prompt_ids=prompt_ids, max_tokens=min(spec.sampling.max_tokens, room)
            )
            completions = await self._draw(request, times)
            together = needs_group(spec.reward)

            async def play(index: int, completion: Completion, stepper: Stepper) -> tuple[Transcript, list[Score]]:
                transcript = await self._play(
                    spec, settings, request, index, completion, stepper, renderer, room, times
                )
                return transcript, [] if together else await self._score(spec, row, [transcript], times)

            played = await gather_or_cancel(
                play(index, completion, stepper)
                for index, (completion, stepper) in enumerate(zip(completions, steppers, strict=True))
            )
            transcripts = [transcript for transcript, _ in played]
            if together:
                scores = await self._score(spec, row, transcripts, times)
            else:
                scores = [score for _, (score,) in played]
        finally:
            for stepper in steppers:  # beside the job's own work: a close that hangs delays nobody
                task = asyncio.create_task(stepper.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        trajectories = [
            _trajectory(transcript, request.policy, score)
            for transcript, score in zip(transcripts, scores, strict=True)
        ]
        return _group(row_index, row, prompt_ids, trajectories)

    async def _play(
        self,
        spec: JobSpec,
        settings: MultiTurn,
        first: RolloutRequest,
        index: int,
        completion: Completion,
        stepper: Stepper,
        renderer: ChatRenderer,
        room: int,
        times: StageTimes,
    ) -> Transcript:
        """Play one episode on from its first reply."""
        transcript = Transcript()
        try:
            while True:
                transcript.add_reply(completion)
                if completion.finish_reason == "length" or completion.token_ids[-1] not in renderer.end_of_turn_ids:
                    transcript.limit = f"the reply of turn {len(transcript.replies)} was cut off at the token limit"
                    break
                observation = await stepper.reply(completion.text)
                transcript.parts = observation.parts
                if observation.done:
                    break
                max_tokens = next_turn(transcript, observation, settings, renderer, spec.sampling.max_tokens, room)
                if not max_tokens:
                    break
                request = dataclasses.replace(
                    first,
                    prompt_ids=first.prompt_ids + transcript.token_ids,
                    n=1,
                    max_tokens=max_tokens,
                    seed=turn_seed(first.seed, index, len(transcript.replies)),
                )
                (completion,) = await self._draw(request, times)
        except EpisodeError as error:
            transcript.error = str(error)
        return transcript

    async def _score(
        self, spec: JobSpec, row: DatasetRow, transcripts: Sequence[Transcript], times: StageTimes
    ) -> list[Score]:
        """Grade finished episodes. What the environment says is shown to the graders, and its parts are added to the
        score's; an episode that broke off is an error and is not graded."""
        start = time.time()
        whole = [transcript for transcript in transcripts if not transcript.error]
        samples = [
            Sample(
                row.model_copy(update={"metadata": {**row.metadata, ENVIRONMENT_PARTS: transcript.parts}}),
                transcript.replies[-1],
                transcript.turns,
            )
            for transcript in whole
        ]
        graded = iter(await self._score_group(spec, samples, times) if samples else [])
        times.add("environment", start, time.time(), episodes=len(transcripts))
        return [
            _with_environment(
                transcript,
                Score(0.0, reason=transcript.error, error=True, error_kind="environment")
                if transcript.error
                else next(graded),
            )
            for transcript in transcripts
        ]

    async def _get_renderer(self) -> ChatRenderer:
        """The base model's renderer, loaded once, in a thread: it takes a second."""
        if self._renderer is None:
            self._renderer = asyncio.ensure_future(asyncio.to_thread(ChatRenderer, self._model_dir))
        return await asyncio.shield(self._renderer)


def _group(row_index: int, row: DatasetRow, prompt_ids: list[int], trajectories: list[Trajectory]) -> Group:
    return Group(
        row=row_index,
        prompt_ids=prompt_ids,
        prompt_text=row.messages[-1].content,
        answer=row.answer,
        trajectories=trajectories,
    )


def _trajectory(transcript: Transcript, policy: Policy, score: Score) -> Trajectory:
    return Trajectory(
        token_ids=transcript.token_ids,
        loss_mask=transcript.loss_mask,
        logprobs=transcript.logprobs,
        adapter_version=_version(policy),
        text="\n\n".join(transcript.lines),
        truncated=bool(transcript.limit),
        score=score,
    )


def _with_environment(transcript: Transcript, score: Score) -> Score:
    """The score with the environment's parts, and the limit that ended the episode."""
    own = {f"environment_{name}": value for name, value in transcript.parts.items()}
    own["environment_turns"] = float(len(transcript.replies))
    limit = "" if transcript.error else transcript.limit
    reason = "; ".join(text for text in (limit, score.reason) if text)
    return dataclasses.replace(score, parts={**own, **score.parts}, reason=reason)


def _version(policy: Policy) -> int | None:
    return policy.version if isinstance(policy, AdapterRef) else None


def _check(request: RolloutRequest, completions: list[Completion]) -> None:
    if len(completions) != request.n:
        raise ValueError(f"asked the rollout for {request.n} completions, got {len(completions)}")
    for completion in completions:
        if completion.policy != request.policy.name:
            raise ValueError(f"asked the rollout for policy {request.policy.name}, got {completion.policy}")
        if not completion.token_ids or len(completion.token_ids) != len(completion.logprobs):
            raise ValueError("the rollout returned no tokens, or not one log-probability for each")
