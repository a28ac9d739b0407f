"""Loss and gradient of one pack, with logits only where a token is trained and never more than a chunk of them.

With a vocabulary of 49k, logits in fp32 are 200 kB a token; so the gradient is taken through the output embedding by
hand, chunk by chunk, and only its result, the gradient of the hidden states, enters autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.spec import TrainingSettings
from engine.training.distribution import Distribution
from engine.training.losses import ALGORITHMS, TokenLoss, Tokens, token_loss
from engine.training.model import BaseModel
from engine.training.packing import Pack

CHUNK_LOGITS = {"cpu": 2**23, "cuda": 2**27}
"""Logits that exist at once, by kind of device. On a CPU 32 MiB in fp32: beyond that glibc maps fresh pages for
every buffer, which costs more than the arithmetic."""


@dataclass(frozen=True)
class PackResult:
    """Per trained token of a pack, each of shape [T], detached."""

    total: torch.Tensor
    """What is minimised: the loss less the entropy bonus, times the token's weight."""
    loss: TokenLoss
    entropy: torch.Tensor
    """Of the policy at the sampling temperature, in nats."""
    tokens: Tokens
    """What the loss was computed from."""


@torch.no_grad()
def pack_logprobs(model: BaseModel, pack: Pack, temperature: float) -> torch.Tensor:
    """Log-probabilities [T] of a pack's trained tokens under whatever is in the lane."""
    return _logprobs(model, _trained_states(model, pack), pack, temperature)


def backward_pack(
    model: BaseModel,
    pack: Pack,
    settings: TrainingSettings,
    temperature: float,
    *,
    old_logprobs: torch.Tensor | None = None,
    base_logprobs: torch.Tensor | None = None,
) -> list[PackResult]:
    """Add the gradient of the sum of the pack's losses to the adapter in the lane; returns the diagnostics by chunk.

    ``old_logprobs`` [T]: before the batch's first update; None in that update. ``base_logprobs`` [T]: for a KL term.
    The sum, not the mean: the caller divides the fp32 total once, so tiny numbers never pass through a 16-bit backward.
    """
    selected = _trained_states(model, pack)
    hidden = selected.detach()
    log_ratios = None
    if ALGORITHMS[settings.algorithm].sequence_ratio:
        log_ratios = _sequence_log_ratios(model, hidden, pack, temperature, old_logprobs)
    gradient = torch.empty_like(selected)
    results = []
    for chunk in _chunks(model, pack):
        distribution = _distribution(model, hidden[chunk], pack, chunk, temperature)
        logprobs = distribution.logprobs
        tokens = Tokens(
            logprobs=logprobs.requires_grad_(),
            old_logprobs=logprobs.detach() if old_logprobs is None else old_logprobs[chunk],
            sampler_logprobs=torch.tensor(pack.sampler_logprobs[chunk], device=model.device),
            advantages=torch.tensor(pack.advantages[chunk], device=model.device),
            sequence_log_ratios=None if log_ratios is None else log_ratios[chunk],
            base_logprobs=None if base_logprobs is None else base_logprobs[chunk],
        )
        result, gradient[chunk] = _chunk_gradient(model, distribution, tokens, pack, chunk, settings)
        results.append(result)
    selected.backward(gradient)
    return results


def _trained_states(model: BaseModel, pack: Pack) -> torch.Tensor:
    """Hidden states [T, hidden] that predict the trained tokens."""
    return model.hidden_states(pack).index_select(0, torch.tensor(pack.sources, device=model.device))


def _chunks(model: BaseModel, pack: Pack) -> Iterator[slice]:
    rows = max(1, CHUNK_LOGITS[model.device.type] // model.vocab_size)
    return (slice(start, start + rows) for start in range(0, len(pack.sources), rows))


@torch.no_grad()
def _distribution(model: BaseModel, hidden: torch.Tensor, pack: Pack, chunk: slice, temperature: float) -> Distribution:
    """Of the next token after ``hidden`` [T, hidden], its targets being the trained tokens."""
    targets = torch.tensor(pack.targets[chunk], device=model.device)
    return Distribution(model.output(hidden), targets, temperature)


def _logprobs(model: BaseModel, hidden: torch.Tensor, pack: Pack, temperature: float) -> torch.Tensor:
    return torch.cat(
        [_distribution(model, hidden[chunk], pack, chunk, temperature).logprobs for chunk in _chunks(model, pack)]
    )


def _sequence_log_ratios(
    model: BaseModel, hidden: torch.Tensor, pack: Pack, temperature: float, old_logprobs: torch.Tensor | None
) -> torch.Tensor:
    """``Tokens.sequence_log_ratios`` [T] of a pack: a pass of its own, before the loss of any token."""
    trajectories = torch.tensor(pack.trajectories, device=model.device)
    if old_logprobs is None:
        return torch.zeros(len(trajectories), device=model.device)
    difference = _logprobs(model, hidden, pack, temperature) - old_logprobs
    count = torch.bincount(trajectories)
    return (torch.zeros(len(count), device=model.device).index_add(0, trajectories, difference) / count)[trajectories]


@torch.no_grad()
def _chunk_gradient(
    model: BaseModel, distribution: Distribution, tokens: Tokens, pack: Pack, chunk: slice, settings: TrainingSettings
) -> tuple[PackResult, torch.Tensor]:
    """Diagnostics of a chunk, and the gradient of its loss with respect to the hidden states [T, hidden]."""
    weights = torch.tensor(pack.weights[chunk], device=model.device)
    with torch.enable_grad():
        loss = token_loss(tokens, settings)
        total = weights * loss.loss
        (slopes,) = torch.autograd.grad(total.sum(), tokens.logprobs)
    bonuses = -settings.entropy_coefficient * weights
    entropies, gradient = distribution.entropy_and_gradient(slopes, bonuses)
    total = total.detach() + bonuses * entropies
    return PackResult(total, loss, entropies, tokens), gradient.to(model.dtype) @ model.output.weight
