"""Attention over a pack of segments, registered with transformers under the name ``ATTENTION``.

A token sees its own prompt and its own branch, causally. Linear layers run over the whole pack; attention runs segment
by segment with a small dense mask, built once per pack and shared by all layers, so its cost does not grow with the
square of the pack.
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


PLAIN_CAUSAL_LENGTH = 2048
"""Beyond so many tokens a prompt with a single branch, which is plainly causal, gets no mask: at 32k tokens a mask
takes 3 GiB."""


@dataclass(frozen=True)
class SegmentMask:
    """Additive mask of one segment of L tokens: 0 where a token (row) sees another (column), else -inf."""

    length: int
    mask: torch.Tensor | None
    """[1, 1, L, L] in the model's dtype; None: causal."""


def segment_mask(segment: Segment, *, dtype: torch.dtype, device: torch.device) -> SegmentMask:
    """The tree mask of a prompt and its branches."""
    length = segment.length
    if len(segment.branch_lengths) <= 1 and length > PLAIN_CAUSAL_LENGTH:
        return SegmentMask(length, None)
    branch = torch.repeat_interleave(
        torch.arange(1 + len(segment.branch_lengths)), torch.tensor([segment.prompt_length, *segment.branch_lengths])
    )
    visible = (branch[:, None] == branch[None, :]) | (branch[None, :] == 0)
    visible &= torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(length, length, dtype=dtype).masked_fill_(~visible, float("-inf"))
    return SegmentMask(length, mask[None, None].to(device))


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
        _attend(q, k, v, segment.mask, scaling)
        for segment, q, k, v in zip(
            segment_masks, query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True
        )
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Query [1, heads, L, d], key and value [1, kv_heads, L, d], mask [1, 1, L, L] or None -> [1, heads, L, d]."""
    _, heads, length, size = query.shape
    kv_heads = key.shape[1]
    if mask is None or query.device.type != "cpu" or length > CPU_PLAIN_LENGTH:
        # PyTorch's fused CUDA kernels take a mask or grouped heads, not both.
        key, value = (tensor.repeat_interleave(heads // kv_heads, dim=1) for tensor in (key, value))
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
    stacked = query.reshape(1, kv_heads, -1, size)  # the query heads of a key head, one below the other
    scores = stacked @ key.transpose(2, 3)
    if serves(scores, mask):
        weights = masked_softmax(scores, mask, scaling)
    else:
        masked = scores.view(1, heads, length, length) * scaling + mask
        weights = torch.softmax(masked, dim=-1, dtype=torch.float32).to(query.dtype).view(1, kv_heads, -1, length)
    return (weights @ value).view(1, heads, length, size)


AttentionInterface.register(ATTENTION, segment_attention)
