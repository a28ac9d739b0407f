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

CHUNK_LOGITS = {"cpu": 2**22, "cuda": 2**27}
"""Logits that exist at once, by kind of device. On a CPU 16 MiB in fp32: beyond 32 MiB glibc maps fresh pages for
every buffer, which costs more than the arithmetic."""


@dataclass(frozen=True)
class PackResult:
    """Per trained token of a pack, each of shape [T], detached."""

    loss: TokenLoss
    entropy: torch.Tensor
    """Of the policy at the sampling temperature, in nats."""
    logprobs: torch.Tensor
    """Of the trained tokens under the policy, at the sampling temperature."""
    sampler_logprobs: torch.Tensor


def backward_pack(model: BaseModel, pack: Pack, settings: TrainingSettings, temperature: float) -> list[PackResult]:
    """Add the gradient of the sum of the pack's losses to the adapter in the lane; returns the diagnostics by chunk.

    The sum, not the mean: the caller divides the fp32 total once, so tiny numbers never pass through a 16-bit backward.
    """
    sources = torch.tensor(pack.sources, device=model.device)
    selected = model.hidden_states(pack).index_select(0, sources)
    gradient = torch.empty_like(selected)
    results = []
    rows = max(1, CHUNK_LOGITS[model.device.type] // model.vocab_size)
    for start in range(0, len(pack.sources), rows):
        chunk = slice(start, start + rows)
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
    logits = model.output(hidden)
    if temperature != 1:
        logits = logits.float().div_(temperature)
    log_probabilities = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    del logits
    logprobs = log_probabilities.gather(1, targets).squeeze(1).requires_grad_()
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

    probabilities = torch.exp(log_probabilities)
    entropy = -torch.linalg.vecdot(probabilities, log_probabilities)
    # d logprob / d logits = (onehot(target) - probabilities) / temperature
    slope = slope[:, None] / temperature
    logit_gradient = probabilities.mul_(-slope)
    logit_gradient.scatter_add_(1, targets, slope)
    hidden_gradient = logit_gradient.to(model.dtype) @ model.output.weight
    result = PackResult(
        loss=TokenLoss(token_loss.loss.detach(), token_loss.ratio, token_loss.clipped, token_loss.importance),
        entropy=entropy,
        logprobs=logprobs.detach(),
        sampler_logprobs=sampler_logprobs,
    )
    return result, hidden_gradient
