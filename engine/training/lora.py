"""Low-rank adapters (LoRA, arXiv 2106.09685) of many jobs on one frozen base.

Every linear layer of the blocks is wrapped once, in a ``LoraLinear``; a job's adapter is a set of tensors that the
wrappers point to while the job is in the lane. Swapping jobs moves no weight, and jobs of any rank and any choice of
target modules share the base.

Invariants: the base's weights never require a gradient; an adapter's initial values depend on its seed and the base's
shapes alone; names and shapes are PEFT's, so ``PeftModel.from_pretrained`` and vLLM load what ``export_adapter``
writes.
"""

from __future__ import annotations

import math
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


class LoraLinear(nn.Module):
    """base(x) + scale * x A^T B^T, computed in the base's dtype; A and B are fp32 masters, cast on the way in.

    The sampler computes the delta in the base's dtype too, so the policy trained is the one sampled. PEFT's own layers
    compute it in fp32, with casts of every input and output.
    """

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base
        self.factors: tuple[nn.Parameter, nn.Parameter] | None = None
        """A [rank, in] and B [out, rank] of the job in the lane; None: the base alone."""
        self.scale = 1.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]"""
        if self.factors is None:
            return self.base(inputs)
        rows = inputs.reshape(-1, inputs.shape[-1])
        outputs = _LoraProduct.apply(rows, self.base.weight, self.base.bias, *self.factors, self.scale)
        return outputs.view(*inputs.shape[:-1], -1)


class _LoraProduct(torch.autograd.Function):
    """x W^T + bias + x A^T (scale * B)^T with its backward by hand: W gets no gradient, and both sums are in place."""

    @staticmethod
    def forward(ctx, rows, weight, bias, down, up, scale):
        """rows [N, in], weight [out, in], bias [out] or None, down [rank, in], up [out, rank] -> [N, out]"""
        down = down.to(rows.dtype)
        up = (up * scale).to(rows.dtype)
        inner = rows @ down.T
        ctx.save_for_backward(rows, weight, down, up, inner)
        ctx.scale = scale
        return functional.linear(rows, weight, bias).addmm_(inner, up.T)

    @staticmethod
    def backward(ctx, grad):
        """grad [N, out] -> gradients of rows, down and up; the masters' are fp32."""
        rows, weight, down, up, inner = ctx.saved_tensors
        grad_inner = grad @ up
        grad_rows = (grad @ weight).addmm_(grad_inner, down) if ctx.needs_input_grad[0] else None
        grad_down = (grad_inner.T @ rows).float()
        grad_up = (grad.T @ inner).float() * ctx.scale
        return grad_rows, None, None, grad_down, grad_up, None


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
        self.flat = nn.Parameter(torch.zeros(sum(a * b for a, b in shapes.values()), device=device))
        self.flat.grad = torch.zeros_like(self.flat)
        self.parameters = {name: nn.Parameter(view) for name, view in self.views(self.flat.data).items()}
        for name, gradient in self.views(self.flat.grad).items():
            self.parameters[name].grad = gradient  # backward accumulates in place

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


def wrap_linear_layers(model: nn.Module, output: nn.Module) -> dict[str, LoraLinear]:
    """Wrap every linear layer but the output embedding; returns the wrappers by module path, in model order."""
    linear = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not output
    }
    layers = {}
    for name, module in linear.items():
        parent, _, child = name.rpartition(".")
        layers[name] = LoraLinear(module)
        setattr(model.get_submodule(parent), child, layers[name])
    return layers


def activate(layers: dict[str, LoraLinear], adapter: Adapter | None) -> None:
    """Put a job's adapter into the lane; None for the base alone."""
    for name, layer in layers.items():
        down = adapter.parameters.get(f"{name}.lora_A.weight") if adapter else None
        if adapter is None or down is None:
            layer.factors = None
        else:
            layer.factors = (down, adapter.parameters[f"{name}.lora_B.weight"])
            layer.scale = adapter.scale


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
