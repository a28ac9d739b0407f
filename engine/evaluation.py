"""Greedy evaluations of a job on its held-out rows, beside its training.

Invariants: an evaluation names one policy for all its rows; each policy is evaluated once, restarts included; nothing
waits for an evaluation but the job's end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from engine.actors import gather_or_cancel
from engine.batches import accuracy, trajectories
from engine.best_version import EvaluationHistory
from engine.doctor import Doctor
from engine.events import Evaluated, Payload, Span
from engine.pool import Pool
from engine.progress import Progress
from engine.prompts import Prompts
from engine.reward_errors import RewardErrors
from engine.spec import JobSpec
from engine.types import AdapterRef, Policy


class Evaluations:
    """The evaluations of one job."""

    def __init__(
        self,
        spec: JobSpec,
        pool: Pool,
        prompts: Prompts,
        progress: Progress,
        doctor: Doctor,
        errors: RewardErrors,
        report: Callable[..., None],
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._prompts = prompts
        self._progress = progress
        self._doctor = doctor
        self._errors = errors
        self._report = report
        self._history = EvaluationHistory(spec.evaluation)
        self._history.restore(progress.history)
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, policy: Policy, step: int) -> None:
        """Evaluate a policy unless that was done or begun before; without held-out rows do nothing."""
        label = label_of(policy)
        if self._prompts.held_out and label not in self._progress.evaluated and label not in self._running:
            self._running[label] = asyncio.create_task(self._evaluate(policy, step))

    async def finished(self) -> None:
        """Wait for all of them; raises the first error."""
        await asyncio.gather(*self._running.values())

    def cancel(self) -> None:
        for task in self._running.values():
            task.cancel()

    @property
    def needed_versions(self) -> set[int]:
        """Versions that are being evaluated, and the best one: retention keeps them."""
        running = {int(label) for label, task in self._running.items() if label != "base" and not task.done()}
        best = self._history.best
        return running | ({best.version} if best and best.version is not None else set())

    @property
    def should_stop(self) -> str:
        """Why the job should end early; empty where it should go on."""
        return self._history.should_stop

    async def _evaluate(self, policy: Policy, step: int) -> None:
        start = time.time()
        results = await gather_or_cancel(
            self._pool.run_group(self._spec, policy, line, row, ids, 1, 0.0, 0)
            for (line, row), ids in zip(self._prompts.held_out, self._prompts.held_out_ids, strict=True)
        )
        groups = [result.group for result in results]
        episodes = trajectories(groups)
        tokens = sum(sum(episode.loss_mask) + episode.score.judge_tokens for episode in episodes)
        version = policy.version if isinstance(policy, AdapterRef) else None
        share, reward_mean = accuracy(groups), sum(episode.score.total for episode in episodes) / len(episodes)
        best = self._history.record(version, step, share, reward_mean)
        errors = self._errors.observe_evaluation(step, groups)
        self._progress.reward_errors = self._errors.state()
        notices = self._doctor.observe_evaluation(step, share, reward_mean)
        self._progress.evaluated.append(label_of(policy))
        self._progress.history = self._history.state()
        self._progress.doctor = self._doctor.state()
        self._progress.tokens_sampled += tokens
        payloads: list[Payload] = [
            Evaluated(
                step=step, adapter_version=version, rows=len(groups), accuracy=share, reward_mean=reward_mean, best=best
            ),
            *errors,
            *notices,
            Span(stage="evaluate", worker="rollout", start=start, end=time.time(), tokens=tokens),
        ]
        self._report(*payloads)


def label_of(policy: Policy) -> str:
    """How the ledger remembers it: ``base``, or the adapter version."""
    return str(policy.version) if isinstance(policy, AdapterRef) else "base"
