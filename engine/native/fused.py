"""The elementwise parts of a transformer block in C, one pass over memory each, with their backward passes.

On two cores a third of a training step is such passes: a norm is six of them, a softmax over bfloat16 scores five.
Values are those of transformers' eager operators but for the order of sums. Every function takes contiguous CPU tensors
of one dtype, fp32 or bfloat16, unless it says otherwise; ``serves`` tells whether it may be called.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from engine.native.compiler import load_library

SOURCE = Path(__file__).with_suffix(".c")
FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_P, _N, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = {
    "rms_norm": [_P, _P, _P, _P, _N, _N, _F],
    "rms_norm_backward": [_P, _P, _P, _P, _P, _N, _N],
    "swiglu": [_P, _P, _P, _N],
    "swiglu_backward": [_P, _P, _P, _P, _P, _N],
    "rotate": [_P, _P, _P, _P, *[_N] * 7, _F],
    "masked_softmax": [_P, _P, _N, _N, _N, _F],
    "softmax_backward": [_P, _P, _P, _N, _N, _F],
    "distribution": [*[_P] * 5, _N, _N, _F],
    "distribution_gradient": [*[_P] * 6, _N, _N, _F],
}


@cache
def _functions() -> dict[str, Any] | None:
    """C functions by name and format; None where they do not compile here."""
    library = load_library(SOURCE, "-ffast-math")
    if library is None:
        return None
    found = {}
    for name, arguments in _ARGUMENTS.items():
        for form in FORMATS.values():
            function = found[f"{name}_{form}"] = getattr(library, f"{name}_{form}")
            function.argtypes, function.restype = arguments, None
    return found


def serves(*tensors: torch.Tensor) -> bool:
    """Whether these tensors may be given to the functions here."""
    first = tensors[0]
    return (
        first.dtype in FORMATS
        and all(tensor.device.type == "cpu" and tensor.dtype == first.dtype for tensor in tensors)
        and _functions() is not None
    )


def _call(name: str, like: torch.Tensor, *arguments: Any) -> None:
    functions = _functions()
    assert functions is not None
    functions[f"{name}_{FORMATS[like.dtype]}"](
        *(one.data_ptr() if isinstance(one, torch.Tensor) else one for one in arguments)
    )


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        x = x.contiguous()
        out, width = torch.empty_like(x), x.shape[-1]
        scales = torch.empty(x.numel() // width, dtype=torch.float32)
        _call("rms_norm", x, out, scales, x, weight, len(scales), width, epsilon)
        ctx.save_for_backward(x, weight, scales)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, weight, scales = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x = torch.empty_like(x)
        _call("rms_norm_backward", x, grad_x, grad, scales, x, weight, len(scales), x.shape[-1])
        return grad_x, None, None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """weight * x / sqrt(mean(x^2) + epsilon) over the last dimension. The weight, [width], gets no gradient."""
    return _RmsNorm.apply(x, weight, epsilon)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        _call("swiglu", gate, out, gate, up, gate.numel())
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        grad = grad.contiguous()
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        _call("swiglu_backward", gate, grad_gate, grad_up, grad, gate, up, gate.numel())
        return grad_gate, grad_up


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, elementwise, of equal shapes."""
    return _SwiGlu.apply(gate, up)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotated(x, cosines, sines, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        return _rotated(grad, cosines, sines, -1.0), None, None


def _rotated(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, sign: float) -> torch.Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty_like(x)  # of the same strides
    _, heads, rows, size = x.shape
    _call(
        "rotate", x, out, x, cosines, sines, heads, rows, size, out.stride(1), out.stride(2), x.stride(1), x.stride(2),
        sign,
    )  # fmt: skip
    return out


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotary positions: x [1, heads, N, d] of any strides, cosines and sines [1, N, d], whose halves are equal."""
    return _Rotate.apply(x, cosines, sines)


class _MaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, mask: torch.Tensor, scaling: float) -> torch.Tensor:
        rows, columns = mask.shape[-2:]
        heads = scores.numel() // (rows * columns)
        _call("masked_softmax", scores, scores, mask, heads, rows, columns, scaling)
        ctx.mark_dirty(scores)
        ctx.save_for_backward(scores)
        ctx.scaling = scaling
        return scores

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        columns = weights.shape[-1]
        out = torch.empty_like(weights)
        _call(
            "softmax_backward",
            weights,
            out,
            grad.contiguous(),
            weights,
            weights.numel() // columns,
            columns,
            ctx.scaling,
        )
        return out, None, None


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor, scaling: float) -> torch.Tensor:
    """softmax(scores * scaling + mask) over the last dimension, into scores' own memory.

    scores [..., columns], whose lines are the mask's once for each head; mask [..., rows, columns] of 0 and -inf, with
    a 0 in every row.
    """
    return _MaskedSoftmax.apply(scores, mask, scaling)


def distribution(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of softmax(logits / temperature): log of the sum, the targets' log-probabilities, and entropy in nats, fp32 [N].

    logits [N, vocabulary], targets int64 [N]. Without a gradient.
    """
    rows, width = logits.shape
    log_sums, logprobs, entropies = (torch.empty(rows) for _ in range(3))
    _call("distribution", logits, log_sums, logprobs, entropies, logits, targets, rows, width, 1 / temperature)
    return log_sums, logprobs, entropies


def distribution_gradient(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, log_sums: torch.Tensor, entropies: torch.Tensor,
    slopes: torch.Tensor, bonuses: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Gradient of sum(slopes * logprobs + bonuses * entropies) with respect to the logits, into their memory.

    ``log_sums`` and ``entropies`` as ``distribution`` gave them; slopes and bonuses fp32 [N].
    """
    rows, width = logits.shape
    inverse = 1 / temperature
    _call(
        "distribution_gradient", logits, logits, log_sums, entropies, targets, (slopes * inverse).contiguous(),
        (bonuses * inverse).contiguous(), rows, width, inverse,
    )  # fmt: skip
    return logits
