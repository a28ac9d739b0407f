"""Optimizer updates, in memory, of one step of any number of jobs, and what is measured on the way.

Jobs whose batches are small share forward and backward passes: the base's products then take the rows of all of them,
and each row meets its own job's adapter alone.

Invariants: a job's update is what it would be alone; log-probabilities that a ratio or a KL term is relative to are
computed once, before the first update; what is not finite in one job ends no other's update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from engine.spec import JobSpec
from engine.training.errors import TrainingError
from engine.training.losses import ALGORITHMS
from engine.training.model import BaseModel
from engine.training.objective import PackResult, Part, backward_pass, pass_logprobs
from engine.training.packing import Pack, build_packs, count_model_tokens, count_row_tokens
from engine.training.passes import PassRunner
from engine.training.schedule import learning_rate
from engine.training.session import Session
from engine.types import TrainBatch


@dataclass(frozen=True)
class MiniBatch:
    """What one optimizer update is computed from."""

    packs: list[Pack]
    divisor: int
    """Turns the sum over its tokens into the algorithm's mean."""


@dataclass(frozen=True)
class Update:
    """What one optimizer update was."""

    loss: float
    grad_norm: float
    """Before clipping."""
    results: list[PackResult]


@dataclass
class Course:
    """One job's updates on its batch, one after another."""

    session: Session
    batch: TrainBatch
    minibatches: list[MiniBatch]
    seconds: float = 0.0
    """Its share of the passes' time, by tokens, and its optimizer's."""
    updates: list[Update] = field(default_factory=list)
    failed: str = ""
    _base: list[list[torch.Tensor]] = field(default_factory=list)
    """[minibatch][pack], where there is a KL term."""
    _old: list[list[torch.Tensor]] = field(default_factory=list)
    """[minibatch][pack], where there is more than one update."""

    @property
    def total(self) -> int:
        """Updates in all."""
        return self.session.spec.training.epochs * len(self.minibatches)

    def parts(self) -> list[Part]:
        """What its next update is computed from."""
        number = len(self.updates) % len(self.minibatches)
        return [
            replace(
                self._part(pack),
                old_logprobs=self._old[number][index] if self._old else None,
                base_logprobs=self._base[number][index] if self._base else None,
            )
            for index, pack in enumerate(self.minibatches[number].packs)
        ]

    def prepare(self, model: BaseModel, runner: PassRunner) -> None:
        """Compute what ratios and KL terms are relative to."""
        started = time.perf_counter()
        if self.session.spec.training.kl_coefficient:
            self._base = self._logprobs(model, runner, base=True)
        if self.total > 1:
            self._old = self._logprobs(model, runner, base=False)
        self.seconds += time.perf_counter() - started

    def apply(self, results: list[PackResult]) -> None:
        """Make the update whose gradient is in the adapter, or note why it cannot be made."""
        started = time.perf_counter()
        divisor = self.minibatches[len(self.updates) % len(self.minibatches)].divisor
        norm = self.session.gradient_norm(divisor)
        loss = _sum([result.total for result in results]) / divisor
        if math.isfinite(loss) and math.isfinite(norm):
            self.session.apply_update(self.batch.step, norm)
            self.updates.append(Update(loss, norm, results))
        else:
            self.failed = (
                f"step {self.batch.step} gave a loss of {loss} and a gradient norm of {norm}: nothing was applied"
            )
        self.seconds += time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """Of the whole step, as in ``engine.events.StepCommitted``."""
        step = self.batch.step
        rate = learning_rate(self.session.spec.training, step)
        found = {**summarise(self.updates), **staleness(self.batch), "learning_rate": rate}
        if found["tokens_trained"]:
            found["train_tokens_per_second"] = found["tokens_trained"] / self.seconds
        return {**found, "train_seconds": self.seconds}

    def _part(self, pack: Pack) -> Part:
        spec = self.session.spec
        return Part(self.session.adapter, pack, spec.training, spec.sampling.temperature)

    def _logprobs(self, model: BaseModel, runner: PassRunner, *, base: bool) -> list[list[torch.Tensor]]:
        """[minibatch][pack] log-probabilities [T] of the trained tokens, under the base or the adapter as it is."""
        parts = [self._part(pack) for minibatch in self.minibatches for pack in minibatch.packs]
        if base:
            parts = [replace(part, adapter=None) for part in parts]
        found = iter(runner.run(lambda shared: pass_logprobs(model, shared), parts))
        return [[next(found) for _ in minibatch.packs] for minibatch in self.minibatches]


def update_sessions(
    model: BaseModel, steps: Sequence[tuple[Session, TrainBatch]], runner: PassRunner, token_budget: int
) -> list[dict[str, float] | TrainingError]:
    """Train each session on its batch: ``epochs * minibatches`` AdamW updates. Their metrics, in order.

    Where a loss or gradient is not finite the error stands in their place; that session is of no use any more. The
    jobs' n-th updates are made together.
    """
    size = runner.part_size(sum(count_row_tokens(batch) for _, batch in steps))
    courses = [Course(session, batch, split_batch(batch, session.spec, token_budget, size)) for session, batch in steps]
    for course in courses:
        course.prepare(model, runner)
    while active := [course for course in courses if len(course.updates) < course.total and not course.failed]:
        for course in active:
            course.session.clear_gradient()
        shares = [course.parts() for course in active]
        parts = [part for share in shares for part in share]
        started = time.perf_counter()
        found = iter(runner.run(lambda shared: backward_pass(model, shared), parts))
        each = (time.perf_counter() - started) / max(1, sum(part.tokens for part in parts))
        for course, share in zip(active, shares, strict=True):
            course.seconds += each * sum(part.tokens for part in share)
            course.apply([result for _ in share for result in next(found)])
    return [TrainingError(course.failed) if course.failed else course.metrics() for course in courses]


def split_batch(batch: TrainBatch, spec: JobSpec, token_budget: int, size: int) -> list[MiniBatch]:
    """The batch in as many parts as there are updates in an epoch, every n-th group to the same part; in packs as
    ``build_packs`` makes them."""
    settings = spec.training
    mean = ALGORITHMS[settings.algorithm].mean
    count = max(1, min(settings.minibatches, len(batch.groups)))
    minibatches = []
    for part in range(count):
        share = replace(batch, groups=batch.groups[part::count], advantages=batch.advantages[part::count])
        packs = build_packs(
            share,
            token_budget,
            size=size,
            # Without a term besides the advantage, a trajectory of advantage 0 has no gradient.
            every_trajectory=bool(settings.kl_coefficient or settings.entropy_coefficient),
            equal_trajectories=mean == "trajectories",
        )
        if mean == "constant":
            divisor = sum(len(group.trajectories) for group in share.groups) * spec.sampling.max_tokens
        else:
            divisor = count_model_tokens(share)
        minibatches.append(MiniBatch(packs, max(1, divisor)))
    return minibatches


def summarise(updates: list[Update]) -> dict[str, float]:
    """Means over updates (loss, gradient norm) and over the tokens they trained, one passed twice counting twice.

    Keys as in ``engine.events.StepCommitted``. What is not defined is absent: without any token trained, all means over
    tokens; without a KL term, ``kl``.
    """
    results = [result for update in updates for result in update.results]
    metrics = {
        "loss": math.fsum(update.loss for update in updates) / len(updates),
        "grad_norm": math.fsum(update.grad_norm for update in updates) / len(updates),
        "updates": float(len(updates)),
        "tokens_trained": float(sum(result.total.numel() for result in results)),
    }
    if not results:
        return metrics
    ratio = torch.cat([result.loss.policy.ratio for result in results])
    importance = torch.cat([result.loss.importance for result in results])
    clipped_low = _mean([result.loss.policy.clipped_low for result in results])
    clipped_high = _mean([result.loss.policy.clipped_high for result in results])
    metrics |= {
        "entropy": _mean([result.entropy for result in results]),
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "clip_fraction": clipped_low + clipped_high,
        "clip_low_fraction": clipped_low,
        "clip_high_fraction": clipped_high,
        "importance_mean": float(importance.mean()),
        "importance_max": float(importance.max()),
        "importance_bounded_fraction": _mean([result.loss.out_of_bounds for result in results]),
        "logprob_gap": _mean(
            [(result.tokens.old_logprobs - result.tokens.sampler_logprobs).abs() for result in results]
        ),
    }
    kl = [result.loss.kl for result in results if result.loss.kl is not None]
    return metrics | ({"kl": _mean(kl)} if kl else {})


def staleness(batch: TrainBatch) -> dict[str, float]:
    """How many versions older than the one it trains a trajectory's policy is; the base counts as version 0."""
    ages = [
        float(batch.step - 1 - (trajectory.adapter_version or 0))
        for group in batch.groups
        for trajectory in group.trajectories
    ]
    return {"staleness_mean": math.fsum(ages) / len(ages), "staleness_max": max(ages)} if ages else {}


def _sum(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat(tensors).sum()) if tensors else 0.0


def _mean(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat(tensors).mean())
