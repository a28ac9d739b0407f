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

from engine.training.errors import TrainingError
from engine.training.packing import Segment

ATTENTION = "marlaas_segments"


@dataclass(frozen=True)
class SegmentMask:
    """Additive mask of one segment of L tokens: 0 where a token (row) sees another (column), else -inf."""

    length: int
    mask: torch.Tensor
    """[1, 1, L, L] in the model's dtype."""


def segment_mask(segment: Segment, *, dtype: torch.dtype, device: torch.device) -> SegmentMask:
    """The tree mask of a prompt and its branches."""
    length = segment.length
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
    grouped = query.shape[1] != key.shape[1]
    outputs = [
        scaled_dot_product_attention(q, k, v, attn_mask=segment.mask, scale=scaling, enable_gqa=grouped)
        for segment, q, k, v in zip(
            segment_masks, query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True
        )
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


AttentionInterface.register(ATTENTION, segment_attention)
