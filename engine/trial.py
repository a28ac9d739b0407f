"""Reward trials on the engine's side: a reward run on given completions, or on fresh samples of the base model.

Invariants: a trial asked for again is not run again while it is remembered; what it reports is sent at least once if
it is asked for again; a trial that hangs ends at its limit; trials never take a job's grading processes, and wait for
rollout capacity under their tenant's share, as jobs do.

A trial is not kept on disk: the portal asks for it again until it has the last report, and a controller that has
restarted runs it anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import ValidationError

from engine.actors import gather_or_cancel
from engine.chat import ChatRenderer, chat_renderer
from engine.data import DatasetError
from engine.models import BaseModelError
from engine.pool import Pool, PoolError
from engine.rewards.judge import Rollout
from engine.rewards.scorer import JudgeModel, Scorer
from engine.spec import BaseModelSpec, RewardSpec
from engine.spec.trial import (
    FINISHED_TRIALS,
    MAX_COMPLETION_CHARACTERS,
    RewardTrialSpec,
    TrialCase,
    TrialReport,
    TrialSampling,
    TrialScore,
)
from engine.types import BASE, Completion, RolloutRequest, Sample, Score

log = logging.getLogger(__name__)

RUNNING_AT_ONCE = 4
"""Trials that sample or grade; more wait in the order they came."""
REMEMBERED = 200
"""Trials whose last report is kept to be sent again."""
REPORT_SECONDS = 0.5
"""Progress is reported at most so often."""

State = Literal["running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class BaseModelAtHand:
    """A base model whose pool is up: what a judge asks."""

    id: str
    model_dir: str
    context_length: int


Scoring = Callable[[RewardSpec, list[Sample], str, str, BaseModelAtHand | None], Awaitable[list[Score]]]
"""(reward, samples of one row, tenant, trial, base model) -> their scores; never raises for what a reward does."""


class TrialGrader:
    """Scores trials, in processes of its own; wrap it with ``ray.remote`` as it is."""

    def __init__(self, workers: int, rollout: Callable[[str], Rollout]) -> None:
        """``rollout``: what draws a judge's replies, for the id of a base model."""
        self._scorer = Scorer(workers)
        self._rollout = rollout

    async def score(
        self, reward: RewardSpec, samples: list[Sample], tenant: str, owner: str, model: BaseModelAtHand | None
    ) -> list[Score]:
        """Score the samples of one row."""
        judge_model = None
        if model is not None:
            renderer = partial(asyncio.to_thread, chat_renderer, model.model_dir)
            judge_model = JudgeModel(self._rollout(model.id), renderer, model.context_length)
        return await self._scorer.score_group(reward, samples, tenant=tenant, owner=owner, judge_model=judge_model)


@dataclass
class Trial:
    """One trial and its last report."""

    trial_id: str
    report: TrialReport
    """Its sequence number is its place among all trials' reports."""
    task: asyncio.Task[None] | None = None
    reported_at: float = 0.0


class Trials:
    """All trials of a controller; use it from its event loop."""

    def __init__(self, pool: Callable[[BaseModelSpec], Awaitable[Pool]], score: Scoring) -> None:
        self._pool = pool
        self._score = score
        self._trials: OrderedDict[str, Trial] = OrderedDict()
        self._sequence = 0
        self._news = asyncio.Event()
        self._room = asyncio.Semaphore(RUNNING_AT_ONCE)

    @property
    def running(self) -> int:
        """Trials that have not ended."""
        return sum(trial.task is not None for trial in self._trials.values())

    def start(self, trial_id: str, spec: dict[str, Any], refusal: str = "") -> None:
        """Run a trial; a known one only reports once more. An invalid spec, or ``refusal``, ends it with its reason."""
        known = self._trials.get(trial_id)
        if known is not None:
            self._say(known, known.report.state, known.report.reason, again=True)
            return
        first = TrialReport(
            trial_id=trial_id, sequence=self._next(), state="running", reason="The engine has taken it on."
        )
        trial = self._trials[trial_id] = Trial(trial_id, first)
        self._news.set()
        try:
            parsed = RewardTrialSpec.model_validate(spec)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in fault["loc"])
            self._say(trial, "failed", f"Invalid trial: {where}: {fault['msg']}")
            return
        if refusal:
            self._say(trial, "failed", refusal)
        elif parsed.ask_until is not None and time.time() > parsed.ask_until:
            self._say(trial, "failed", "The engine was not up in time. Start the test again.")
        else:
            trial.task = asyncio.get_running_loop().create_task(self._run(trial, parsed), name=f"trial {trial_id}")
        self._forget_old()

    def cancel(self, trial_id: str) -> None:
        """End a trial that runs; others are left alone."""
        trial = self._trials.get(trial_id)
        if trial is not None and trial.task is not None:
            trial.task.cancel()

    async def next_reports(self, after: int, timeout: float) -> tuple[int, list[TrialReport]]:
        """The last report of every trial that reported after sequence number ``after``, as soon as there is one;
        none after ``timeout`` seconds. Returns the number to go on from."""
        if self._sequence <= after:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._news.wait()
        reports = [trial.report for trial in self._trials.values() if trial.report.sequence > after]
        return max([after, *(report.sequence for report in reports)]), reports

    # --- one trial ---

    async def _run(self, trial: Trial, spec: RewardTrialSpec) -> None:
        try:
            if self._room.locked():
                self._say(trial, "running", "Waits for other trials to end.")
            async with self._room:
                await self._run_within_limit(trial, spec)
        except asyncio.CancelledError:
            self._say(trial, "cancelled", "Cancelled on request.")
        except TimeoutError:
            self._say(
                trial, "failed",
                f"Stopped after {spec.limit_seconds:g} s. Try fewer rows, fewer samples or shorter completions.",
            )  # fmt: skip
        except (DatasetError, BaseModelError, PoolError) as error:
            self._say(trial, "failed", str(error))
        except Exception as error:
            log.exception("trial %s broke off", trial.trial_id)
            self._say(trial, "failed", f"The engine could not finish the trial: {type(error).__name__}. Try again.")
        finally:
            trial.task = None

    async def _run_within_limit(self, trial: Trial, spec: RewardTrialSpec) -> None:
        """Raises TimeoutError past the trial's limit. A base model that starts does not count towards it."""
        if spec.sampling is None:
            async with asyncio.timeout(spec.limit_seconds):
                given = [[_given(text) for text in case.completions] for case in spec.cases]
                self._finish(trial, spec, await self._grade(trial, spec, given))
            return
        self._say(trial, "running", f"Getting base model {spec.sampling.base_model.id} ready.")
        pool = await self._pool(spec.sampling.base_model)
        pool.register_share(trial.trial_id, spec.tenant_id, spec.weight)
        try:
            async with asyncio.timeout(spec.limit_seconds):
                drawn = await self._draw(trial, spec, spec.sampling, pool)
                model = BaseModelAtHand(
                    spec.sampling.base_model.id, pool.model_dir, spec.sampling.base_model.context_length
                )
                scores = await self._grade(trial, spec, drawn, model)
        finally:
            used = pool.forget_share(trial.trial_id, spec.tenant_id)
        self._finish(trial, spec, scores, used)

    async def _draw(
        self, trial: Trial, spec: RewardTrialSpec, sampling: TrialSampling, pool: Pool
    ) -> list[list[TrialScore]]:
        """[case][sample] completions without a score."""
        renderer = await asyncio.to_thread(chat_renderer, pool.model_dir)
        context = sampling.base_model.context_length
        prompts = [_prompt_ids(renderer, case, sampling, context) for case in spec.cases]
        drawn = 0
        total = len(prompts)
        self._say(trial, "running", f"Sampling: 0 of {total} prompts.")

        async def draw(case: TrialCase, index: int, prompt_ids: list[int]) -> list[TrialScore]:
            nonlocal drawn
            if case.completions:
                completions = [_given(text) for text in case.completions]
            else:
                request = RolloutRequest(
                    policy=BASE, prompt_ids=prompt_ids, n=sampling.samples, temperature=sampling.temperature,
                    max_tokens=min(sampling.max_tokens, context - len(prompt_ids)),
                    seed=(sampling.seed + index) % 2**31, job_id=trial.trial_id,
                )  # fmt: skip
                completions = [_sampled(one) for one in await pool.generate(request)]
            drawn += 1
            self._progress(trial, f"Sampling: {drawn} of {total} prompts.", 0)
            return completions

        cases = zip(spec.cases, prompts, strict=True)
        return await gather_or_cancel(draw(case, index, ids) for index, (case, ids) in enumerate(cases))

    async def _grade(
        self,
        trial: Trial,
        spec: RewardTrialSpec,
        completions: list[list[TrialScore]],
        model: BaseModelAtHand | None = None,
    ) -> list[list[TrialScore]]:
        total = sum(len(group) for group in completions)
        done = 0
        self._say(trial, "running", f"Scoring: 0 of {total} completions.")

        async def grade(case: TrialCase, group: list[TrialScore]) -> list[TrialScore]:
            nonlocal done
            samples = [Sample(case.row, one.completion) for one in group]
            scores = await self._score(spec.reward, samples, spec.tenant_id, trial.trial_id, model)
            done += len(group)
            self._progress(trial, f"Scoring: {done} of {total} completions.", done)
            return [_scored(one, score) for one, score in zip(group, scores, strict=True)]

        return await gather_or_cancel(grade(case, group) for case, group in zip(spec.cases, completions, strict=True))

    def _finish(self, trial: Trial, spec: RewardTrialSpec, scores: list[list[TrialScore]], used: float = 0.0) -> None:
        count = sum(len(group) for group in scores)
        plural = "" if count == 1 else "s"
        self._say(
            trial, "done", f"{count} completion{plural} scored.", done=count, scores=scores, accelerator_seconds=used,
            sampled_tokens=sum(score.tokens + score.judge_tokens for group in scores for score in group),
        )  # fmt: skip

    # --- reports ---

    def _progress(self, trial: Trial, reason: str, done: int) -> None:
        if time.monotonic() - trial.reported_at >= REPORT_SECONDS:
            self._say(trial, "running", reason, done=done)

    def _say(self, trial: Trial, state: State, reason: str, *, again: bool = False, **more: Any) -> None:
        sequence = self._next()
        if again:
            trial.report = trial.report.model_copy(update={"sequence": sequence})
        else:
            trial.report = TrialReport(trial_id=trial.trial_id, sequence=sequence, state=state, reason=reason, **more)
        trial.reported_at = time.monotonic()
        self._news.set()

    def _next(self) -> int:
        """The next sequence number, by the clock in milliseconds: a restarted controller goes on from a higher one."""
        self._sequence = max(self._sequence + 1, int(time.time() * 1000))
        return self._sequence

    def _forget_old(self) -> None:
        finished = [trial_id for trial_id, trial in self._trials.items() if trial.report.state in FINISHED_TRIALS]
        for trial_id in finished[: max(0, len(self._trials) - REMEMBERED)]:
            del self._trials[trial_id]


def _prompt_ids(renderer: ChatRenderer, case: TrialCase, sampling: TrialSampling, context: int) -> list[int]:
    """A row's prompt as token ids. Raises DatasetError where it leaves no room for an answer."""
    number = case.number or 0
    (ids,) = renderer.render([(number, case.row)], sampling.system_prompt)
    if len(ids) >= context and not case.completions:
        which = "The prompt" if case.number is None else f"The prompt in line {number + 1}"
        raise DatasetError(f"{which} has {len(ids)} tokens; base model {sampling.base_model.id} takes {context}.")
    return ids


def _given(text: str) -> TrialScore:
    return TrialScore(completion=text, total=0.0)


def _sampled(completion: Completion) -> TrialScore:
    return TrialScore(
        completion=completion.text[:MAX_COMPLETION_CHARACTERS],
        total=0.0,
        tokens=len(completion.token_ids),
        truncated=completion.finish_reason == "length",
    )


def _scored(one: TrialScore, score: Score) -> TrialScore:
    """A completion with what the reward said of it."""
    said = {name: getattr(score, name) for name in TrialScore.model_fields if hasattr(score, name)}
    return one.model_copy(update=said)
