"""Loss and gradient of one pass, with logits only where a token is trained and never more than a chunk of them.

With a vocabulary of 49k, logits in fp32 are 200 kB a token; so the gradient is taken through the output embedding by
hand, chunk by chunk, and only its result, the gradient of the hidden states, enters autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.spec import TrainingSettings
from engine.training.distribution import Distribution
from engine.training.lora import Adapter
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


@dataclass(frozen=True)
class Part:
    """One job's share of a pass: a pack, the adapter it is computed with, and what its loss is made of."""

    adapter: Adapter | None
    """None: the base alone."""
    pack: Pack
    settings: TrainingSettings
    temperature: float
    old_logprobs: torch.Tensor | None = None
    """[T] before the batch's first update; None in that update."""
    base_logprobs: torch.Tensor | None = None
    """[T] for a KL term."""

    @property
    def tokens(self) -> int:
        """N"""
        return len(self.pack.input_ids)


@torch.no_grad()
def pass_logprobs(model: BaseModel, parts: Sequence[Part]) -> list[torch.Tensor]:
    """For each part of one pass the log-probabilities [T] of its pack's trained tokens."""
    states = _trained_states(model, parts)
    model.release()
    return [_logprobs(model, hidden, part) for part, hidden in zip(parts, states, strict=True)]


def backward_pass(model: BaseModel, parts: Sequence[Part]) -> list[list[PackResult]]:
    """One forward and backward pass over the packs of any number of jobs: add the gradient of the sum of each pack's
    losses to its adapter. Returns each part's diagnostics, by chunk.

    The sum, not the mean: the caller divides the fp32 total once, so tiny numbers never pass through a 16-bit backward.
    """
    states = _trained_states(model, parts)
    outcomes = [_hidden_gradient(model, hidden.detach(), part) for part, hidden in zip(parts, states, strict=True)]
    torch.autograd.backward(states, [gradient for _, gradient in outcomes])
    model.release()
    return [results for results, _ in outcomes]


def _hidden_gradient(model: BaseModel, hidden: torch.Tensor, part: Part) -> tuple[list[PackResult], torch.Tensor]:
    """Diagnostics of a part, and the gradient of its loss with respect to its trained tokens' states [T, hidden]."""
    pack, old_logprobs, base_logprobs = part.pack, part.old_logprobs, part.base_logprobs
    log_ratios = None
    if ALGORITHMS[part.settings.algorithm].sequence_ratio:
        log_ratios = _sequence_log_ratios(model, hidden, part)
    gradient = torch.empty_like(hidden)
    results = []
    for chunk in _chunks(model, pack):
        distribution = _distribution(model, hidden[chunk], part, chunk)
        logprobs = distribution.logprobs
        tokens = Tokens(
            logprobs=logprobs.requires_grad_(),
            old_logprobs=logprobs.detach() if old_logprobs is None else old_logprobs[chunk],
            sampler_logprobs=torch.tensor(pack.sampler_logprobs[chunk], device=model.device),
            advantages=torch.tensor(pack.advantages[chunk], device=model.device),
            sequence_log_ratios=None if log_ratios is None else log_ratios[chunk],
            base_logprobs=None if base_logprobs is None else base_logprobs[chunk],
        )
        result, gradient[chunk] = _chunk_gradient(model, distribution, tokens, pack, chunk, part.settings)
        results.append(result)
    return results, gradient


def _trained_states(model: BaseModel, parts: Sequence[Part]) -> tuple[torch.Tensor, ...]:
    """For each part the hidden states [T, hidden] that predict its trained tokens."""
    sources, start = [], 0
    for part in parts:
        sources += [start + source for source in part.pack.sources]
        start += part.tokens
    states = model.hidden_states([(part.adapter, part.pack) for part in parts])
    selected = states.index_select(0, torch.tensor(sources, device=model.device))
    return selected.split([len(part.pack.sources) for part in parts])


def _chunks(model: BaseModel, pack: Pack) -> Iterator[slice]:
    rows = max(1, CHUNK_LOGITS[model.device.type] // model.vocab_size)
    return (slice(start, start + rows) for start in range(0, len(pack.sources), rows))


@torch.no_grad()
def _distribution(model: BaseModel, hidden: torch.Tensor, part: Part, chunk: slice) -> Distribution:
    """Of the next token after ``hidden`` [T, hidden], its targets being the trained tokens."""
    targets = torch.tensor(part.pack.targets[chunk], device=model.device)
    return Distribution(model.output(hidden), targets, part.temperature)


def _logprobs(model: BaseModel, hidden: torch.Tensor, part: Part) -> torch.Tensor:
    chunks = _chunks(model, part.pack)
    return torch.cat([_distribution(model, hidden[chunk], part, chunk).logprobs for chunk in chunks])


def _sequence_log_ratios(model: BaseModel, hidden: torch.Tensor, part: Part) -> torch.Tensor:
    """``Tokens.sequence_log_ratios`` [T] of a pack: a pass of its own, before the loss of any token."""
    trajectories = torch.tensor(part.pack.trajectories, device=model.device)
    if part.old_logprobs is None:
        return torch.zeros(len(trajectories), device=model.device)
    difference = _logprobs(model, hidden, part) - part.old_logprobs
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
