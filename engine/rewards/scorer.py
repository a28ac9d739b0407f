"""The scorer: sends each leaf of a reward to where it runs, and makes one score of what comes back.

Declarative graders run in the grading processes, all of a sample's in one call; tenant Python and programs in the
sandbox; the judge in the rollout. They run at the same time and are combined here, in the parent.

Invariants: every sample gets a score, finite and in [0, 1], whatever a grader does; only a rollout that fails under
the judge raises, as it does under the samples themselves. Cancelling a call cancels what it waits for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.actors import gather_or_cancel
from engine.chat import ChatRenderer
from engine.rewards.judge import Rollout, judge
from engine.rewards.mixing import combine
from engine.rewards.runner import GraderPool
from engine.spec import CodeTests, DeclarativeGrader, Judge, Python, RewardSpec, SandboxedGrader, leaf_graders
from engine.types import Sample, Score

Column = list[Score]
"""One leaf's scores, of all samples in order."""


class Sandbox(Protocol):
    """Where strangers' code runs; see ``engine.sandbox.pool.SandboxPool``."""

    async def score_batch(
        self, grader: Python | CodeTests, samples: Sequence[Sample], *, tenant: str, owner: str, timeout: float
    ) -> list[Score]:
        """A score for each sample, whatever the code does: by one call of a batch function, else one by one."""

    async def close(self) -> None:
        """End every process."""


@dataclass(frozen=True)
class JudgeModel:
    """What a judge needs."""

    rollout: Rollout
    renderer: Callable[[], Awaitable[ChatRenderer]]
    """Of the base model, loaded when first asked for."""
    context_length: int
    """Of the base model, in tokens."""


@dataclass(frozen=True)
class Job:
    """On whose behalf, and within what limits, samples are scored."""

    tenant: str
    owner: str
    timeout: float
    judge_model: JudgeModel | None


def needs_group(reward: RewardSpec) -> bool:
    """Whether the samples of a group must be scored in one call."""
    return any(isinstance(leaf, Python) and leaf.batch for leaf in leaf_graders(reward.grader))


class Scorer:
    """Scores the samples of any number of jobs at once. Use it from one event loop."""

    def __init__(self, workers: int, make_sandbox: Callable[[], Sandbox] | None = None) -> None:
        """
        Args:
            workers: grading processes, at least 2.
            make_sandbox: called when the first grader needs it; by default a ``SandboxPool`` of ``workers``.
        """
        self.graders = GraderPool(workers)
        self._make_sandbox = make_sandbox or (lambda: _sandbox_pool(workers))
        self._sandbox: Sandbox | None = None

    async def score(
        self, reward: RewardSpec, sample: Sample, *, tenant: str, owner: str, judge_model: JudgeModel | None = None
    ) -> Score:
        """Score one sample; see ``score_group``."""
        (score,) = await self.score_group(reward, [sample], tenant=tenant, owner=owner, judge_model=judge_model)
        return score

    async def score_group(
        self,
        reward: RewardSpec,
        samples: Sequence[Sample],
        *,
        tenant: str,
        owner: str,
        judge_model: JudgeModel | None = None,
    ) -> list[Score]:
        """Score the samples of one group.

        Args:
            tenant: whose code it is; code of two tenants never shares a process.
            owner: the job; gradings of different owners are served in turn, and the judge's tokens are its own.
            judge_model: None: a judge cannot be asked here, and its score is an error.

        Returns:
            A score for each sample, in order.
        """
        job = Job(tenant, owner, reward.timeout_seconds, judge_model)
        leaves = dict(enumerate(leaf_graders(reward.grader)))
        declarative = {place: leaf for place, leaf in leaves.items() if not isinstance(leaf, Judge | SandboxedGrader)}
        work = [self._declarative(declarative, samples, job)] if declarative else []
        for place, leaf in leaves.items():
            if isinstance(leaf, Judge):
                work.append(self._judge(place, leaf, samples, job))
            elif isinstance(leaf, Python | CodeTests):
                work.append(self._sandboxed(place, leaf, samples, job))
        columns = {place: column for found in await gather_or_cancel(work) for place, column in found.items()}
        by_sample = zip(*(columns[place] for place in leaves), strict=True)
        return [combine(reward.grader, scores) for scores in by_sample]

    def sandbox(self) -> Sandbox:
        """Where strangers' code runs, made when it is first asked for."""
        if self._sandbox is None:
            self._sandbox = self._make_sandbox()
        return self._sandbox

    async def close(self) -> None:
        """End every process."""
        await self.graders.close()
        if self._sandbox is not None:
            await self._sandbox.close()

    async def _declarative(
        self, graders: Mapping[int, DeclarativeGrader], samples: Sequence[Sample], job: Job
    ) -> dict[int, Column]:
        rows = await gather_or_cancel(
            self.graders.score(list(graders.values()), sample, timeout=job.timeout, owner=job.owner)
            for sample in samples
        )
        return dict(zip(graders, map(list, zip(*rows, strict=True)), strict=True))

    async def _sandboxed(
        self, place: int, grader: Python | CodeTests, samples: Sequence[Sample], job: Job
    ) -> dict[int, Column]:
        scores = await self.sandbox().score_batch(
            grader, samples, tenant=job.tenant, owner=job.owner, timeout=job.timeout
        )
        return {place: scores}

    async def _judge(self, place: int, grader: Judge, samples: Sequence[Sample], job: Job) -> dict[int, Column]:
        model = job.judge_model
        if model is None:
            reason = "the judge is the base model, and none is at hand here; test with fresh samples of one"
            return {place: [Score(0.0, reason=reason, error=True, error_kind="grader")] * len(samples)}
        renderer, rollout = await model.renderer(), model.rollout
        return {
            place: await gather_or_cancel(
                judge(grader, sample, rollout, renderer, job_id=job.owner, context_length=model.context_length)
                for sample in samples
            )
        }


def _sandbox_pool(workers: int) -> Sandbox:
    from engine.sandbox.pool import SandboxPool  # only where a reward needs it

    pool: Sandbox = SandboxPool(workers)
    return pool
