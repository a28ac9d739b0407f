"""Attention over a pack of segments, registered with transformers under the name ``ATTENTION``.

A token sees its own prompt and its own branch, causally. Linear layers run over the whole pack; attention runs segment
by segment: the prompt by itself, and its branches as a batch, padded to the longest, each of which sees the prompt's
keys and its own. So its cost grows neither with the square of the pack nor with that of a group. Where branches are so
uneven that padding would cost more, a segment gets one small dense mask instead. Indices and masks are built once per
pack and shared by all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.native.fused import masked_softmax, serves
from engine.training.errors import TrainingError
from engine.training.packing import Segment

ATTENTION = "marlaas_segments"

CPU_PLAIN_LENGTH = 1024
"""Up to so many tokens, two plain matrix products beat PyTorch's fused CPU kernel, whose backward is slow: measured
1.0 against 3.3 ms at 133 tokens, 13 against 27 ms at 580, the other way round at 1800 (bf16, 9 heads of 64)."""


BATCHING_COST = {"cpu": 50_000, "cuda": 4_000_000}
"""So many scores take as long as the further operators that batching branches needs (SmolLM2-135M, bf16, a core: 8
branches of 24 tokens are about even, 6 of 150 take a fifth less of a step). For CUDA it is an estimate."""

PLAIN_CAUSAL_LENGTH = 2048
"""Beyond so many tokens a prompt with a single branch, which is plainly causal, gets no mask: at 32k tokens a mask
takes 3 GiB."""


@dataclass(frozen=True)
class SegmentMask:
    """What attention needs to know of one segment of L tokens."""

    length: int
    mask: torch.Tensor | None
    """[1, 1, L, L] in the model's dtype: 0 where a token (row) sees another (column), else -inf. None: causal, or there
    are ``branches``."""
    branches: Branches | None = None


@dataclass(frozen=True)
class Branches:
    """The branches of a segment as a batch: B of them, P tokens of prompt, the longest branch K tokens."""

    prompt: torch.Tensor
    """[1, 1, P, P] causal mask."""
    mask: torch.Tensor
    """[1, 1, K, P + K]: the whole prompt, and a branch causally. What pads a branch lies behind all its tokens, so none
    of them sees it."""
    padded: torch.Tensor
    """[B * K] places in the segment; padding repeats the prompt's first token."""
    places: torch.Tensor
    """[L - P] of each token of a branch its place in ``padded``."""
    count: int


def segment_mask(segment: Segment, *, dtype: torch.dtype, device: torch.device) -> SegmentMask:
    """The mask of a prompt and its branches."""
    prompt, lengths = segment.prompt_length, [length for length in segment.branch_lengths if length]
    longest = max(lengths, default=0)
    batched = prompt**2 + len(lengths) * longest * (prompt + longest)
    if len(lengths) > 1 and segment.length**2 - batched > BATCHING_COST[device.type]:
        return SegmentMask(segment.length, None, _branches(prompt, lengths, dtype, device))
    if len(lengths) <= 1 and segment.length > PLAIN_CAUSAL_LENGTH:
        return SegmentMask(segment.length, None)
    branch = torch.repeat_interleave(
        torch.arange(1 + len(segment.branch_lengths)), torch.tensor([prompt, *segment.branch_lengths])
    )
    visible = (branch[:, None] == branch[None, :]) | (branch[None, :] == 0)
    visible &= torch.ones(segment.length, segment.length, dtype=torch.bool).tril()
    return SegmentMask(segment.length, _additive(visible, dtype, device))


def _branches(prompt: int, lengths: list[int], dtype: torch.dtype, device: torch.device) -> Branches:
    longest = max(lengths)
    padded = torch.zeros(len(lengths), longest, dtype=torch.long)
    places, start = [], prompt
    for index, length in enumerate(lengths):
        padded[index, :length] = torch.arange(start, start + length)
        places.append(torch.arange(index * longest, index * longest + length))
        start += length
    causal = torch.ones(prompt + longest, prompt + longest, dtype=torch.bool).tril()
    return Branches(
        prompt=_additive(causal[:prompt, :prompt], dtype, device),
        mask=_additive(causal[prompt:], dtype, device),
        padded=padded.flatten().to(device),
        places=torch.cat(places).to(device),
        count=len(lengths),
    )


def _additive(visible: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
    return mask[None, None].to(device)


def segment_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    segment_masks: list[SegmentMask],
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. Query [1, heads, N, d], key and value [1, kv_heads, N, d] -> [1, N, heads, d].

    Raises ``TrainingError`` for a model whose attention is limited to a window or capped: neither is implemented here.
    """
    window = kwargs.get("sliding_window")
    if kwargs.get("softcap") is not None or (window is not None and any(s.length > window for s in segment_masks)):
        raise TrainingError("this base model's attention (sliding window or soft cap) is not supported by the trainer")
    lengths = [segment.length for segment in segment_masks]
    outputs = [
        _attend_branches(q, k, v, segment.branches, scaling)
        if segment.branches
        else _attend(q, k, v, segment.mask, scaling)
        for segment, q, k, v in zip(
            segment_masks, query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True
        )
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _attend_branches(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, branches: Branches, scaling: float
) -> torch.Tensor:
    """As ``_attend``, of a prompt and its branches."""
    prompt, count = branches.prompt.shape[-1], branches.count
    of_prompt = _attend(query[:, :, :prompt], key[:, :, :prompt], value[:, :, :prompt], branches.prompt, scaling)
    outputs = _attend(
        _batch(query, branches),
        torch.cat([key[:, :, :prompt].expand(count, -1, -1, -1), _batch(key, branches)], dim=2),
        torch.cat([value[:, :, :prompt].expand(count, -1, -1, -1), _batch(value, branches)], dim=2),
        branches.mask,
        scaling,
    )
    rows = outputs.transpose(1, 2).flatten(0, 1).index_select(0, branches.places)  # [L - P, heads, d]
    return torch.cat([of_prompt, rows.transpose(0, 1)[None]], dim=2)


def _batch(tensor: torch.Tensor, branches: Branches) -> torch.Tensor:
    """[1, heads, L, d] -> [B, heads, K, d]"""
    rows = tensor[0].transpose(0, 1).index_select(0, branches.padded)  # [B * K, heads, d]
    return rows.view(branches.count, -1, *rows.shape[1:]).transpose(1, 2)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Query [B, heads, Q, d], key and value [B, kv_heads, L, d], mask [1, 1, Q, L] or None -> [B, heads, Q, d]."""
    batch, heads, rows, size = query.shape
    kv_heads, length = key.shape[1:3]
    if mask is None or query.device.type != "cpu" or length > CPU_PLAIN_LENGTH:
        # PyTorch's fused CUDA kernels take a mask or grouped heads, not both.
        key, value = (tensor.repeat_interleave(heads // kv_heads, dim=1) for tensor in (key, value))
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
    stacked = query.reshape(batch, kv_heads, -1, size)  # the query heads of a key head, one below the other
    scores = stacked @ key.transpose(2, 3)
    if serves(scores, mask):
        weights = masked_softmax(scores, mask, scaling)
    else:
        masked = scores.view(batch, heads, rows, length) * scaling + mask
        weights = torch.softmax(masked, dim=-1, dtype=torch.float32).to(query.dtype)
        weights = weights.view(batch, kv_heads, -1, length)
    return (weights @ value).view(batch, heads, rows, size)


AttentionInterface.register(ATTENTION, segment_attention)
