"""The LoRA kernel in C, for CPUs with AVX-512 BF16: a third of the time of batched matmuls, and no copies of weights.

It is compiled for this machine when the rollout starts, in a third of a second, and where that cannot be done (no
compiler, another CPU) the batched matmuls of ``cpu_lora`` serve. Row by row it does what they do.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.native.compiler import load_library

if TYPE_CHECKING:
    import torch

SOURCE = Path(__file__).with_suffix(".c")
MAX_BLOCK_ROWS = 16
MAX_RANK = 512


@dataclass(frozen=True)
class Layer:
    """Where the weights of one layer's slots lie, slice by slice. Kept by whoever keeps the tensors."""

    tensors: tuple[torch.Tensor, ...]
    a: Any
    b: Any
    widths: Any
    rank: int
    inputs: int


def layer_of(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...], output_slices: tuple[int, ...]) -> Layer | None:
    """The kernel's view of a layer; None where it does not serve its shapes or dtype.

    Per slice ``a`` [slots, 1, rank, in] and ``b`` [slots, 1, out, rank].
    """
    import torch

    rank = a[0].shape[-2]
    served = (
        rank % 2 == 0
        and rank <= MAX_RANK
        and all(width % 16 == 0 for width in output_slices)
        and all(tensor.dtype == torch.bfloat16 and tensor.is_contiguous() for tensor in (*a, *b))
    )
    if not served:
        return None
    count = len(output_slices)
    return Layer(
        tensors=(*a, *b),
        a=(ctypes.c_void_p * count)(*[tensor.data_ptr() for tensor in a]),
        b=(ctypes.c_void_p * count)(*[tensor.data_ptr() for tensor in b]),
        widths=(ctypes.c_int64 * count)(*output_slices),
        rank=rank,
        inputs=a[0].shape[-1],
    )


@dataclass(frozen=True)
class Blocks:
    """The rows of a step that have an adapter, in blocks of one slot each."""

    index: torch.Tensor
    """Rows, block after block."""
    blocks: torch.Tensor
    """[blocks, 3]: slot, first place in ``index``, rows."""


def blocks_of(slots: tuple[int, ...], rows: list[torch.Tensor]) -> Blocks:
    """Cut each slot's rows into blocks: large enough to use a weight several times, enough of them for every thread."""
    import torch

    index = torch.cat(rows)
    size = min(MAX_BLOCK_ROWS, max(4, -(-len(index) // (2 * torch.get_num_threads()))))
    blocks, first = [], 0
    for slot, group in zip(slots, rows, strict=True):
        for start in range(0, len(group), size):
            blocks.append((slot, first + start, min(size, len(group) - start)))
        first += len(group)
    return Blocks(index, torch.tensor(blocks))


class Kernel:
    """The compiled kernel."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._add = library.marlaas_add_lora
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._add.argtypes = [pointer, number, pointer, number, pointer, pointer, *[number] * 4, *[pointer] * 3]
        self._add.restype = None

    def add(self, y: torch.Tensor, x: torch.Tensor, layer: Layer, blocks: Blocks) -> None:
        """``y[row, slice] += B[slot] (A[slot] x[row])`` in place. x [N, in], y [N, sum of widths]; rows contiguous."""
        self._add(
            y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0), blocks.index.data_ptr(), blocks.blocks.data_ptr(),
            len(blocks.blocks), layer.inputs, layer.rank, len(layer.widths), layer.a, layer.b, layer.widths,
        )  # fmt: skip


@cache
def load_kernel() -> Kernel | None:
    """Compile the kernel for this machine; None where that cannot be done."""
    library = load_library(SOURCE)
    return Kernel(library) if library else None
