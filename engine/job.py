"""One job's run, from its last commit to its end, driven by events alone: it awaits its own rollouts, rewards and steps
and nobody else's.

Invariants: a step is trained from the last commit only and committed by the trainer before it is reported; data order
and sampling seeds follow from the spec's seed and the committed cursor, so a restart repeats no step and loses none;
whatever goes wrong ends this job with a reason in plain words and no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from engine.actors import LostActor, gather_or_cancel
from engine.batches import (
    accuracy,
    batch_metrics,
    describe_silence,
    finite,
    rewards,
    rollout_event,
    sampling_seed,
    stage_spans,
    trajectories,
)
from engine.config import EngineConfig
from engine.data import DatasetError, draw
from engine.events import (
    AdapterPublished,
    AdapterRemoved,
    Evaluated,
    JobStatus,
    Notice,
    Payload,
    Span,
    StatusChanged,
    StepCommitted,
)
from engine.ledger import Ledger, Progress
from engine.models import BaseModelError
from engine.pool import Pool, PoolError, PublishError
from engine.prompts import Prompts, load_prompts
from engine.rollout.adapter_files import AdapterError
from engine.spec import BaseModelSpec, JobSpec
from engine.store import StoreError, prune, read_manifest
from engine.training.advantages import group_advantages
from engine.training.errors import TrainingError
from engine.types import BASE, AdapterRef, Commit, Group, Policy, TrainBatch

log = logging.getLogger(__name__)

PROBE_TOKENS = 128
"""At most so many tokens are compared between trainer and rollout after a publish."""
KEEP_EVERY = 10
"""Retention: every so many versions one is kept, besides the last three and those that were evaluated."""


class JobFailed(Exception):
    """The job cannot go on. ``reason`` and ``advice`` are for the tenant."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


REASONED = (
    JobFailed,
    AdapterError,
    BaseModelError,
    DatasetError,
    LostActor,
    PoolError,
    PublishError,
    StoreError,
    TrainingError,
)
"""Errors whose message is written for the tenant or the operator."""


class JobRun:
    """Runs one job until it ends. ``run`` never raises but on cancellation by a stopping controller."""

    def __init__(
        self,
        spec: JobSpec,
        progress: Progress,
        ledger: Ledger,
        config: EngineConfig,
        pool_of: Callable[[BaseModelSpec], Awaitable[Pool]],
        wake: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.progress = progress
        self._ledger = ledger
        self._pool_of = pool_of
        self._wake = wake
        self._pool: Pool | None = None
        self._commit: Commit | None = None
        self._policy: AdapterRef | None = None
        self._evaluations: list[asyncio.Task[None]] = []
        self._background: set[asyncio.Task[None]] = set()
        self._job_dir = str(config.job_dir(spec.job_id))
        self._kept = {int(version) for version in progress.evaluated if version != "base"}
        self._silent_batches = 0

    # --- reporting ---

    def _report(self, *payloads: Payload) -> None:
        self._ledger.report(self.spec.job_id, *payloads, progress=self.progress)
        self._wake()

    def _status(self, status: JobStatus, reason: str, following: str = "") -> None:
        self._report(StatusChanged(status=status, reason=reason, next=following))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- life ---

    async def run(self) -> None:
        """Bring the job to an end and report it."""
        started = time.time()
        self.progress.first_ran = self.progress.first_ran or started
        left = self.spec.limits.max_wall_seconds - (started - self.progress.first_ran)
        try:
            async with asyncio.timeout(max(left, 0)):
                await self._train_all()
        except TimeoutError:
            self._finish_early(f"The wall-clock limit of {self.spec.limits.max_wall_seconds} s was reached")
        except asyncio.CancelledError:
            if not self.progress.cancel:
                raise  # the controller stops; the next one resumes from the last commit
            self._end("cancelled", "Cancelled on request.")
        except REASONED as error:
            self._end("failed", str(error), getattr(error, "advice", ""))
        except Exception as error:
            log.exception("job %s failed", self.spec.job_id)
            self._end("failed", f"The engine failed: {type(error).__name__}: {error}")
        finally:
            await self._release()

    def _what_is_kept(self) -> str:
        if self._commit is None or self._commit.step == 0:
            return "No step was committed, so there is no adapter."
        return f"The adapter of step {self._commit.step} is kept and can be downloaded."

    def _finish_early(self, why: str) -> None:
        """End before all steps are made, keeping what was learnt; without any step the job failed."""
        step = self._commit.step if self._commit else 0
        if step == 0:
            self._end("failed", f"{why} before the first step was committed.")
        else:
            self._end("succeeded", f"{why}; stopped after step {step} of {self.spec.training.steps}.")

    def _end(self, status: JobStatus, reason: str, following: str = "") -> None:
        """Report the end; the last committed version, if any, is the job's result."""
        if self._commit is not None and self._commit.step > 0:
            self._report(self._published(self._commit, final=True))
        self._status(status, reason, following or self._what_is_kept())

    async def _release(self) -> None:
        for task in self._evaluations:
            task.cancel()
        if self._pool is None:
            return
        try:
            if self._policy is not None:
                await self._pool.retire(self._policy)
            await self._pool.close_job(self.spec)
        except (LostActor, asyncio.CancelledError):
            log.warning("job %s: its memory goes with the actor that held it", self.spec.job_id)

    # --- the run ---

    async def _train_all(self) -> None:
        spec = self.spec
        start = time.time()
        self._status(
            "preparing", f"Starting base model {spec.base_model.id} and checking the dataset.", "Rollouts begin."
        )
        pool = self._pool = await self._pool_of(spec.base_model)
        prompts = await asyncio.to_thread(load_prompts, spec, pool.model_dir)
        self._commit = await pool.open_job(spec)
        self._policy, _ = await pool.publish(self._commit, [], [])
        self._report(Span(stage="prepare", worker="controller", start=start, end=time.time()))
        self._catch_up(self._commit)
        self._status("running", f"Training: step {self._commit.step} of {spec.training.steps} is committed.")
        if "base" not in self.progress.evaluated:
            self._start_evaluation(prompts, BASE, 0)

        cursor, early = self._commit.cursor, ""
        while self._commit.step < spec.training.steps:
            groups, spans = await self._collect(prompts, cursor)
            cursor += spec.training.prompts_per_step
            advantages = [group_advantages(rewards(group)) for group in groups]
            if not any(advantage for group in advantages for advantage in group):
                if early := self._silent_batch(groups, advantages, spans):
                    break
                continue
            self._silent_batches = 0
            await self._step(groups, advantages, cursor, spans)
            self._evaluate_on_schedule(prompts)
        if self._commit.step and str(self._commit.version) not in self.progress.evaluated:
            self._start_evaluation(prompts, self._policy, self._commit.step)
        await asyncio.gather(*self._evaluations)
        if early:
            self._finish_early(early)
        else:
            self._end("succeeded", f"All {spec.training.steps} steps are committed.", "Download the adapter.")

    async def _collect(self, prompts: Prompts, cursor: int) -> tuple[list[Group], list[Span]]:
        """Draw the next prompts and let the current policy answer each with a group of episodes."""
        spec, pool, policy = self.spec, self._pool, self._policy
        assert pool and policy
        rows = draw(len(prompts.train), spec.seed, cursor, spec.training.prompts_per_step)
        results = await gather_or_cancel(
            pool.run_group(
                spec,
                policy,
                *prompts.train[index],
                prompts.train_ids[index],
                spec.training.group_size,
                spec.sampling.temperature,
                sampling_seed(spec.seed, cursor + position),
            )
            for position, index in enumerate(rows)
        )
        return [result.group for result in results], stage_spans(results)

    async def _step(self, groups: list[Group], advantages: list[list[float]], cursor: int, spans: list[Span]) -> None:
        """One optimizer step: train, commit (in the trainer), publish, report."""
        pool, previous, commit = self._pool, self._policy, self._commit
        assert pool and previous and commit
        queued = time.time()
        batch = TrainBatch(
            job_id=self.spec.job_id,
            step=commit.step + 1,
            cursor=cursor,
            groups=groups,
            advantages=advantages,
            probe_ids=(groups[0].prompt_ids + groups[0].trajectories[0].token_ids)[:PROBE_TOKENS],
            metrics={
                **batch_metrics(groups, advantages),
                **{f"{span.stage}_seconds": span.end - span.start for span in spans},
            },
        )
        result = await pool.train(self.spec, batch)
        trained = time.time()
        if result.commit.sha256 == commit.sha256:
            raise PublishError(f"step {batch.step} left the adapter unchanged")
        self._commit = result.commit
        self._policy, probe_gap = await pool.publish(result.commit, batch.probe_ids, result.probe_logprobs)
        published = time.time()
        train_start = max(queued, trained - result.metrics["train_seconds"])
        tokens = int(result.metrics["tokens_trained"])
        self.progress.step = self.progress.published = result.commit.step
        self._report(
            StepCommitted(
                step=batch.step,
                adapter_version=result.commit.version,
                metrics={
                    **finite(result.metrics),
                    "publish_seconds": published - trained,
                    "probe_gap": probe_gap,
                },
            ),
            self._published(result.commit),
            *(
                rollout_event(batch.step, group, group_advantages_, previous.version)
                for group, group_advantages_ in zip(groups, advantages, strict=True)
            ),
            *spans,
            Span(stage="queue", worker="trainer", start=queued, end=train_start),
            Span(stage="train", worker="trainer", start=train_start, end=trained, tokens=tokens),
            Span(stage="publish", worker="rollout", start=trained, end=published),
        )
        self._in_background(pool.retire(previous))  # it waits for requests in flight, evaluations among them
        self._prune()

    def _silent_batch(self, groups: list[Group], advantages: list[list[float]], spans: list[Span]) -> str:
        """A batch without learning signal: show it, count it. Where the job ends because of it: why."""
        assert self._commit and self._policy
        self._silent_batches += 1
        allowed = self.spec.limits.max_batches_without_signal
        reason = describe_silence(groups, self._silent_batches)
        self._report(
            Notice(
                level="warning",
                code="no_learning_signal",
                message=reason,
                hint="Drawing other prompts instead. "
                f"After {allowed} such batches in a row the job ends; this was number {self._silent_batches}.",
            ),
            *(
                rollout_event(self._commit.step + 1, group, advantage, self._policy.version)
                for group, advantage in zip(groups, advantages, strict=True)
            ),
            *spans,
        )
        if self._silent_batches < allowed:
            return ""
        if self._commit.step == 0:
            raise JobFailed(
                f"{reason} There is nothing to learn from.",
                "Test the reward on the completions shown, make the task easier or give partial credit with a "
                "weighted mix, then start a new job.",
            )
        return reason.rstrip(".")

    # --- evaluation ---

    def _evaluate_on_schedule(self, prompts: Prompts) -> None:
        assert self._commit and self._policy
        every = self.spec.evaluation.every_steps
        if every and self._commit.step % every == 0:
            self._start_evaluation(prompts, self._policy, self._commit.step)

    def _start_evaluation(self, prompts: Prompts, policy: Policy, step: int) -> None:
        """Evaluate beside the training: nothing waits for it but the job's end."""
        if isinstance(policy, AdapterRef):
            self._kept.add(policy.version)
        self._evaluations.append(asyncio.create_task(self._evaluate(prompts, policy, step)))

    async def _evaluate(self, prompts: Prompts, policy: Policy, step: int) -> None:
        pool = self._pool
        assert pool
        if not prompts.held_out:
            return
        start = time.time()
        results = await gather_or_cancel(
            pool.run_group(self.spec, policy, line, row, ids, 1, 0.0, 0)
            for (line, row), ids in zip(prompts.held_out, prompts.held_out_ids, strict=True)
        )
        groups = [result.group for result in results]
        episodes = trajectories(groups)
        version = policy.version if isinstance(policy, AdapterRef) else None
        self.progress.evaluated.append("base" if version is None else str(version))
        self._report(
            Evaluated(
                step=step,
                adapter_version=version,
                rows=len(groups),
                accuracy=accuracy(groups),
                reward_mean=sum(t.score.total for t in episodes) / len(episodes),
            ),
            Span(
                stage="evaluate",
                worker="rollout",
                start=start,
                end=time.time(),
                tokens=sum(len(t.token_ids) for t in episodes),
            ),
        )

    # --- versions ---

    def _catch_up(self, commit: Commit) -> None:
        """Report a commit whose report was lost with the controller that made it."""
        if commit.version > self.progress.published:
            payloads: list[Payload] = [self._published(commit)]
            if commit.step > self.progress.step:
                metrics = finite(read_manifest(self._job_dir, commit.version).metrics)
                payloads.insert(0, StepCommitted(step=commit.step, adapter_version=commit.version, metrics=metrics))
            self.progress.step, self.progress.published = commit.step, commit.version
            self._report(*payloads)

    @staticmethod
    def _published(commit: Commit, final: bool = False) -> AdapterPublished:
        return AdapterPublished(
            adapter_version=commit.version,
            name=AdapterRef(commit.job_id, commit.version, 0, commit.path, commit.sha256).name,
            step=commit.step,
            path=commit.path,
            sha256=commit.sha256,
            size_bytes=commit.size_bytes,
            rank=commit.rank,
            final=final,
        )

    def _prune(self) -> None:
        assert self._commit
        last = self._commit.version
        removed = prune(self._job_dir, keep={last - 2, *self._kept, *range(0, last, KEEP_EVERY)})
        if removed:
            self._report(AdapterRemoved(adapter_versions=removed))
