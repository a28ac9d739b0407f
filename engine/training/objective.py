"""Loss and gradient of one pack, with logits only where a token is trained and never more than a chunk of them.

With a vocabulary of 49k, logits in fp32 are 200 kB a token; so the gradient is taken through the output embedding by
hand, chunk by chunk, and only its result, the gradient of the hidden states, enters autograd.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.spec import TrainingSettings
from engine.training.losses import LOSSES, TokenLoss, Tokens
from engine.training.model import BaseModel
from engine.training.packing import Pack

CHUNK_TOKENS = 256
"""Trained tokens whose logits exist at once."""


@dataclass(frozen=True)
class PackResult:
    """Per trained token of a pack, each of shape [T], detached."""

    loss: TokenLoss
    entropy: torch.Tensor
    """Of the policy at the sampling temperature, in nats."""
    gap: torch.Tensor
    """|trainer's - sampler's log-probability|"""


def backward_pack(model: BaseModel, pack: Pack, settings: TrainingSettings, temperature: float) -> list[PackResult]:
    """Add the gradient of the sum of the pack's losses to the adapter in the lane; returns the diagnostics by chunk.

    The sum, not the mean: the caller divides the fp32 total once, so small numbers never pass through a 16-bit backward.
    """
    sources = torch.tensor(pack.sources, device=model.device)
    selected = model.hidden_states(pack).index_select(0, sources)
    gradient = torch.empty_like(selected)
    results = []
    for start in range(0, len(pack.sources), CHUNK_TOKENS):
        chunk = slice(start, start + CHUNK_TOKENS)
        result, gradient[chunk] = _chunk_gradient(model, selected.detach()[chunk], pack, chunk, settings, temperature)
        results.append(result)
    selected.backward(gradient)
    return results


@torch.no_grad()
def _chunk_gradient(
    model: BaseModel,
    hidden: torch.Tensor,
    pack: Pack,
    chunk: slice,
    settings: TrainingSettings,
    temperature: float,
) -> tuple[PackResult, torch.Tensor]:
    """Diagnostics of a chunk, and the gradient of its loss with respect to ``hidden`` [T, hidden]."""
    device = model.device
    targets = torch.tensor(pack.targets[chunk], device=device)[:, None]
    logits = model.output(hidden).float().div_(temperature)
    log_partition = torch.logsumexp(logits, dim=-1, keepdim=True)
    logprobs = logits.gather(1, targets).sub_(log_partition).squeeze(1)
    logprobs.requires_grad_()
    sampler_logprobs = torch.tensor(pack.sampler_logprobs[chunk], device=device)
    tokens = Tokens(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),  # one optimizer update a batch
        sampler_logprobs=sampler_logprobs,
        advantages=torch.tensor(pack.advantages[chunk], device=device),
    )
    with torch.enable_grad():
        token_loss = LOSSES[settings.algorithm](tokens, settings)
        (slope,) = torch.autograd.grad(token_loss.loss.sum(), logprobs)

    probabilities = torch.exp(logits - log_partition)
    entropy = log_partition.squeeze(1) - (probabilities * logits).sum(dim=-1)
    # d logprob / d logits = (onehot(target) - probabilities) / temperature
    slope = slope[:, None] / temperature
    logit_gradient = probabilities.mul_(-slope)
    logit_gradient.scatter_add_(1, targets, slope)
    hidden_gradient = logit_gradient.to(model.dtype) @ model.output.weight
    result = PackResult(
        loss=TokenLoss(token_loss.loss.detach(), token_loss.ratio, token_loss.clipped, token_loss.importance),
        entropy=entropy,
        gap=(logprobs.detach() - sampler_logprobs).abs(),
    )
    return result, hidden_gradient
