"""Puts the fused operators of ``engine.native.fused`` into a transformers model on a CPU.

Which blocks compute what is not asked of a list of architectures: a module that looks as if a fused operator does the
same gets it if, on random input, it gives what the module gave. Anything else stays as transformers wrote it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from engine.native.fused import rms_norm, rotate, serves, swiglu

PROBE_ROWS = 3
ROTARY = "apply_rotary_pos_emb"


def fuse(model: nn.Module) -> dict[str, int]:
    """Replace the norms', feed-forward blocks' and rotary positions' computation; how many of each were."""
    weight = next(model.parameters())
    counts = {"norms": 0, "feed-forward blocks": 0, "rotary positions": 0}
    if not serves(weight):
        return counts
    for module in list(model.modules()):
        counts["norms"] += _replaced(module, _norm(module), getattr(module, "weight", weight).shape[-1])
        gate = getattr(module, "gate_proj", None)
        if isinstance(gate, nn.Linear):
            counts["feed-forward blocks"] += _replaced(module, _feed_forward(module), gate.in_features)
    for name in {type(module).__module__ for module in model.modules()}:
        counts["rotary positions"] += _rotary(sys.modules[name], weight.dtype)
    return counts


def _norm(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not type(module).__name__.endswith("RMSNorm") or weight is None or not isinstance(epsilon, float):
        return None
    return lambda hidden_states: rms_norm(hidden_states, weight, epsilon)


def _feed_forward(module: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    if not all(hasattr(module, part) for part in ("up_proj", "down_proj", "act_fn")):
        return None
    # Looked up when called: the layers are wrapped for LoRA later.
    return lambda x: module.down_proj(swiglu(module.gate_proj(x), module.up_proj(x)))


def _replaced(module: nn.Module, fused: Callable[[torch.Tensor], torch.Tensor] | None, width: int) -> int:
    """1 where ``fused`` took the place of the module's ``forward``, which takes [1, rows, width], else 0."""
    if fused is None:
        return 0
    dtype = next(module.parameters()).dtype
    probe = torch.randn(1, PROBE_ROWS, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        if not _equal(module(probe), fused(probe)):
            return 0
    module.forward = fused
    return 1


def _rotary(code: Any, dtype: torch.dtype) -> int:
    """Replace a modeling file's function for rotary positions, for as long as this process runs."""
    original = getattr(code, ROTARY, None)
    if original is None or hasattr(original, "eager"):
        return 0
    if list(inspect.signature(original).parameters)[:5] != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        return 0

    def apply(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        served = q.shape[0] == 1 and unsqueeze_dim == 1 and cos.shape[-1] == q.shape[-1] and serves(q, k, cos, sin)
        if not served:
            both: tuple[torch.Tensor, torch.Tensor] = original(q, k, cos, sin, unsqueeze_dim)
            return both
        return rotate(q, cos, sin), rotate(k, cos, sin)

    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, PROBE_ROWS, 8, generator=generator).to(dtype) for heads in (4, 2))
    angles = torch.randn(1, PROBE_ROWS, 4, generator=generator).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if not all(_equal(*pair) for pair in zip(original(q, k, cos, sin), apply(q, k, cos, sin), strict=True)):
        return 0
    apply.eager = original  # type: ignore[attr-defined]
    setattr(code, ROTARY, apply)
    return 1


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    tolerance = 1e-5 if first.dtype == torch.float32 else 2**-6
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance * float(first.abs().max()))
