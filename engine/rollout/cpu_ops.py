"""vLLM's own C++ kernel for RMSNorm, where its CPU build would compute it in eager PyTorch.

vLLM 0.32 leaves RMSNorm on CPUs to ``torch.compile``, which costs half a minute at the start; without it each norm is
a handful of passes over memory with copies to fp32 and back, a sixth of a decoding step. The compiled kernel is in the
build and does one pass, in fp32 inside; what it does not cover stays as it was. (Its SwiGLU is no faster than
PyTorch's.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def register() -> None:
    """Use the kernel in every layer built from now on. Idempotent."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    RMSNorm.forward_cpu = rms_norm  # type: ignore[method-assign]


def rms_norm(self: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    """``RMSNorm.forward``: of x, or of x + residual, which is then returned beside it. x and residual [..., hidden]."""
    import torch

    plain = self.variance_size_override is None and self.has_weight and self.weight.dtype == x.dtype
    if not plain or x.dim() != 2 or not x.is_contiguous():
        return self.forward_native(x, residual)
    if residual is None:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight.data, self.variance_epsilon)
        return out
    # In place, as vLLM's own fused call may: the caller goes on with what is returned.
    torch.ops._C.fused_add_rms_norm(x, residual, self.weight.data, self.variance_epsilon)
    return x, residual
