"""Low-rank adapters (LoRA, arXiv 2106.09685) of many jobs on one frozen base.

Every linear layer of the blocks is wrapped once, in a ``LoraLinear``; a job's adapter is a set of tensors that the
wrappers point to while the job is in the lane. Swapping jobs moves no weight, and jobs of any rank and any choice of
target modules share the base, also in one pass.

Invariants: the base's weights never require a gradient; an adapter's initial values depend on its seed and the base's
shapes alone; names and shapes are PEFT's, so ``PeftModel.from_pretrained`` and vLLM load what ``export_adapter``
writes.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from engine.spec import BaseModelSpec, LoraSettings
from engine.store import ADAPTER_FILE
from engine.training.errors import TrainingError

PEFT_PREFIX = "base_model.model."


class Passing(threading.local):
    """What is particular to the pass that a thread is computing; each thread has its own."""

    def __init__(self) -> None:
        self.checkpointing = False
        self.factors: dict[str, list[Factors]] = {}
        """By layer; rows of no adapter are the base's alone."""

    def put(self, adapters: Sequence[tuple[Adapter | None, int]]) -> None:
        """Each adapter for so many of the pass's rows, one below the other; None: the base alone."""
        self.factors = {}
        start = 0
        for adapter, parts in groupby(adapters, key=itemgetter(0)):  # what an adapter has side by side is one product
            rows = slice(start, start + sum(count for _, count in parts))
            start = rows.stop
            if adapter is not None:
                for layer, down, up in adapter.by_layer:
                    self.factors.setdefault(layer, []).append(Factors(rows, down, up, adapter.scale))


class LoraLinear(nn.Module):
    """base(x) + scale * x A^T B^T, computed in the base's dtype; A and B are fp32 masters, cast on the way in.

    The rows may belong to several jobs, one below the other; each meets its own factors only. The sampler computes the
    delta in the base's dtype too, so the policy trained is the one sampled. PEFT's own layers compute it in fp32, with
    casts of every input and output.
    """

    def __init__(self, base: nn.Linear, name: str, passing: Passing):
        super().__init__()
        self.base = base
        self._name = name
        self._passing = passing

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]"""
        factors = self._passing.factors.get(self._name)
        if not factors:
            return self.base(inputs)
        rows = inputs.reshape(-1, inputs.shape[-1])
        places = [(one.rows, one.scale) for one in factors]
        masters = [master for one in factors for master in (one.down, one.up)]
        outputs = _LoraProduct.apply(rows, self.base.weight, self.base.bias, places, *masters)
        return outputs.view(*inputs.shape[:-1], -1)


@dataclass(frozen=True)
class Factors:
    """One adapter's part in a layer."""

    rows: slice
    """Those of its job."""
    down: nn.Parameter
    """A [rank, in]"""
    up: nn.Parameter
    """B [out, rank]"""
    scale: float


class _LoraProduct(torch.autograd.Function):
    """x W^T + bias and, for each adapter's rows, + x A^T (scale * B)^T, with its backward by hand: W gets no gradient,
    and all sums are in place."""

    @staticmethod
    def forward(ctx, rows, weight, bias, places, *masters):
        """rows [N, in], weight [out, in], bias [out] or None -> [N, out]. ``places``: rows and scale of each adapter;
        ``masters``: its A [rank, in] and B [out, rank]."""
        outputs = functional.linear(rows, weight, bias)
        saved = []
        for (part, scale), down, up in zip(places, masters[::2], masters[1::2], strict=True):
            down, up = down.to(rows.dtype), (up * scale).to(rows.dtype)
            inner = rows[part] @ down.T
            outputs[part].addmm_(inner, up.T)
            saved += [down, up, inner]
        ctx.save_for_backward(rows, weight, *saved)
        ctx.places = places
        return outputs

    @staticmethod
    def backward(ctx, grad):
        """grad [N, out] -> gradients of rows and of each A and B; the masters' are fp32."""
        rows, weight, *saved = ctx.saved_tensors
        grad_rows = grad @ weight if ctx.needs_input_grad[0] else None
        grads = []
        for (part, scale), down, up, inner in zip(ctx.places, saved[::3], saved[1::3], saved[2::3], strict=True):
            grad_inner = grad[part] @ up
            if grad_rows is not None:
                grad_rows[part].addmm_(grad_inner, down)
            grads += [(grad_inner.T @ rows[part]).float(), (grad[part].T @ inner).float() * scale]
        return grad_rows, None, None, None, *grads


class Adapter:
    """The trainable tensors of one job: one flat fp32 parameter, with every A and B a view into it.

    One flat tensor makes clipping and AdamW single operations.
    """

    def __init__(self, layers: dict[str, LoraLinear], settings: LoraSettings, device: torch.device):
        """Zeros. Raises ``TrainingError`` for a target module the base model does not have."""
        self.scale = settings.alpha / (math.sqrt(settings.rank) if settings.use_rslora else settings.rank)
        shapes: dict[str, tuple[int, int]] = {}
        for name, layer in _targets(layers, settings).items():
            shapes[f"{name}.lora_A.weight"] = (settings.rank, layer.base.in_features)
            shapes[f"{name}.lora_B.weight"] = (layer.base.out_features, settings.rank)
        self._shapes = shapes
        self._layers = list(_targets(layers, settings))
        self._hold(torch.zeros(sum(a * b for a, b in shapes.values()), device=device))

    def _hold(self, weights: torch.Tensor) -> None:
        self.flat = nn.Parameter(weights)
        self.flat.grad = torch.zeros_like(weights)
        self.parameters = {name: nn.Parameter(view) for name, view in self.views(self.flat.data).items()}
        for name, gradient in self.views(self.flat.grad).items():
            self.parameters[name].grad = gradient  # backward accumulates in place
        tensors = list(self.parameters.values())
        self.by_layer = list(zip(self._layers, tensors[::2], tensors[1::2], strict=True))
        """Name, A and B of each layer."""

    def twin(self) -> Adapter:
        """The same weights with a gradient of its own."""
        other = copy.copy(self)
        other._hold(self.flat.data)
        return other

    def add_gradient(self, twin: Adapter) -> None:
        assert self.flat.grad is not None and twin.flat.grad is not None
        self.flat.grad += twin.flat.grad

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Named views into a flat tensor of this adapter's size, in layer order."""
        pieces = flat.split([a * b for a, b in self._shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    def initialise(self, seed: int) -> None:
        """B = 0, so the adapter changes nothing yet; A uniform as in PEFT (Kaiming, a = sqrt(5)), drawn on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        self.flat.data.zero_()
        for name, tensor in self.views(self.flat.data).items():
            if name.endswith("lora_A.weight"):
                bound = 1 / math.sqrt(tensor.shape[1])
                tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))

    def load(self, flat: torch.Tensor, tensors: dict[str, torch.Tensor], prefix: str) -> None:
        """Copy named tensors into a flat tensor of this adapter's size."""
        for name, view in self.views(flat).items():
            view.copy_(tensors[prefix + name])


def _targets(layers: dict[str, LoraLinear], settings: LoraSettings) -> dict[str, LoraLinear]:
    """The layers that carry the adapter, in model order."""
    if not settings.target_modules:
        return layers
    present = {_last_part(name) for name in layers}
    if missing := set(settings.target_modules) - present:
        raise TrainingError(
            f"lora.target_modules names {', '.join(sorted(missing))}, which this base model does not have; "
            f"it has {', '.join(sorted(present))}"
        )
    return {name: layer for name, layer in layers.items() if _last_part(name) in settings.target_modules}


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def wrap_linear_layers(model: nn.Module, output: nn.Module, passing: Passing) -> dict[str, LoraLinear]:
    """Wrap every linear layer but the output embedding; returns the wrappers by module path, in model order."""
    linear = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not output
    }
    layers = {}
    for name, module in linear.items():
        parent, _, child = name.rpartition(".")
        layers[name] = LoraLinear(module, name, passing)
        setattr(model.get_submodule(parent), child, layers[name])
    return layers


def export_adapter(folder: Path, adapter: Adapter, settings: LoraSettings, base_model: BaseModelSpec) -> None:
    """Write adapter_model.safetensors (fp32) and adapter_config.json."""
    tensors = {PEFT_PREFIX + name: parameter.data.cpu() for name, parameter in adapter.parameters.items()}
    save_file(tensors, folder / ADAPTER_FILE, metadata={"format": "pt"})
    target_modules = sorted({name.split(".")[-3] for name in adapter.parameters})
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        use_rslora=settings.use_rslora,
        target_modules=target_modules,
        inference_mode=True,
        # A folder of the engine means nothing to whoever downloads the adapter; the model's name does.
        base_model_name_or_path=base_model.location if base_model.source == "huggingface" else base_model.id,
        revision=base_model.revision or None,
    )
    config.save_pretrained(str(folder))


def load_adapter(folder: Path, adapter: Adapter) -> None:
    """Read what ``export_adapter`` wrote."""
    adapter.load(adapter.flat.data, load_file(folder / ADAPTER_FILE), PEFT_PREFIX)
