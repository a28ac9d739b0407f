"""One step's optimizer updates, in memory, and what is measured on the way.

Invariant: log-probabilities that a ratio or a KL term is relative to are computed once, before the first update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from engine.spec import JobSpec
from engine.training.errors import TrainingError
from engine.training.lora import activate
from engine.training.losses import ALGORITHMS
from engine.training.model import BaseModel
from engine.training.objective import PackResult, backward_pack, pack_logprobs
from engine.training.packing import Pack, build_packs, count_model_tokens
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


def update_session(model: BaseModel, session: Session, batch: TrainBatch, token_budget: int) -> dict[str, float]:
    """Train the session on the batch: ``epochs * minibatches`` AdamW updates; returns the metrics.

    Raises ``TrainingError`` where a loss or gradient is not finite; the session is of no use after that.
    """
    settings, temperature = session.spec.training, session.spec.sampling.temperature
    minibatches = split_batch(batch, session.spec, token_budget)
    base = old = None
    if settings.kl_coefficient:
        activate(model.layers, None)
        base = _logprobs(model, minibatches, temperature)
    activate(model.layers, session.adapter)
    if settings.epochs * len(minibatches) > 1:
        old = _logprobs(model, minibatches, temperature)

    updates = []
    for _ in range(settings.epochs):
        for part, minibatch in enumerate(minibatches):
            session.clear_gradient()
            results = [
                result
                for index, pack in enumerate(minibatch.packs)
                for result in backward_pack(
                    model,
                    pack,
                    settings,
                    temperature,
                    old_logprobs=old[part][index] if old else None,
                    base_logprobs=base[part][index] if base else None,
                )
            ]
            norm = session.gradient_norm(minibatch.divisor)
            loss = _sum([result.total for result in results]) / minibatch.divisor
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise TrainingError(
                    f"step {batch.step} gave a loss of {loss} and a gradient norm of {norm}: nothing was applied"
                )
            session.apply_update(batch.step, norm)
            updates.append(Update(loss, norm, results))
    return {**summarise(updates), **staleness(batch), "learning_rate": learning_rate(settings, batch.step)}


def split_batch(batch: TrainBatch, spec: JobSpec, token_budget: int) -> list[MiniBatch]:
    """The batch in as many parts as there are updates in a pass, every n-th group to the same part."""
    settings = spec.training
    mean = ALGORITHMS[settings.algorithm].mean
    count = max(1, min(settings.minibatches, len(batch.groups)))
    minibatches = []
    for part in range(count):
        share = replace(batch, groups=batch.groups[part::count], advantages=batch.advantages[part::count])
        packs = build_packs(
            share,
            token_budget,
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


def _logprobs(model: BaseModel, minibatches: list[MiniBatch], temperature: float) -> list[list[torch.Tensor]]:
    """[minibatch][pack] log-probabilities [T] of the trained tokens under whatever is in the lane."""
    return [[pack_logprobs(model, pack, temperature) for pack in minibatch.packs] for minibatch in minibatches]


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
