"""The frozen base with its LoRA wrappers, and what the trainer computes with it.

Invariant: base weights never change (``digest`` before = after) and never require a gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from engine.training.attention import ATTENTION, segment_mask
from engine.training.fusing import fuse
from engine.training.lora import Adapter, LoraLinear, Passing, wrap_linear_layers
from engine.training.packing import Pack, Segment


class BaseModel:
    """One frozen causal LM."""

    def __init__(self, model_dir: str, *, dtype: str, device: str, checkpoint_above: int = 2048):
        """Load from a folder in Hugging Face's layout; ``dtype`` as torch names it, e.g. ``bfloat16``.

        A pack of more than ``checkpoint_above`` tokens is computed with gradient checkpointing: every block's
        activations are dropped and computed again in the backward pass. Slower by a third, and no result changes.
        """
        self.device = torch.device(device)
        self.dtype: torch.dtype = getattr(torch, dtype)
        model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=self.dtype, attn_implementation=ATTENTION, local_files_only=True
        )
        model.requires_grad_(False).eval().to(self.device)
        fuse(model)
        self._weights: dict[str, torch.Tensor] = dict(model.named_parameters())
        self._body: nn.Module = model.base_model
        self.output: nn.Linear = model.get_output_embeddings()
        self.vocab_size: int = self.output.weight.shape[0]
        self._passing = Passing()
        self.layers: dict[str, LoraLinear] = wrap_linear_layers(model, self.output, self._passing)
        self._model = model
        self._checkpoint_above = checkpoint_above
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.forward = self._checkpointed(module.forward)

    def _checkpointed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The block's forward pass, checkpointed where the pack asks for it.

        transformers' own switch works in training mode only, which would also switch dropout on.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._passing.checkpointing:
                return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
            return forward(*args, **kwargs)

        return run

    def digest(self) -> str:
        """sha256 over the names and bytes of the base's weights."""
        digest = hashlib.sha256()
        for name in sorted(self._weights):
            digest.update(name.encode())
            digest.update(self._weights[name].detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def hidden_states(self, parts: Sequence[tuple[Adapter | None, Pack]]) -> torch.Tensor:
        """Last hidden states [N, hidden] of packs, one below the other, each with its adapter; None: the base alone."""
        packs = [pack for _, pack in parts]
        input_ids = [token for pack in packs for token in pack.input_ids]
        self._passing.checkpointing = torch.is_grad_enabled() and len(input_ids) > self._checkpoint_above
        self._passing.put([(adapter, len(pack.input_ids)) for adapter, pack in parts])
        return self._body(
            input_ids=torch.tensor([input_ids], device=self.device),
            position_ids=torch.tensor([[place for pack in packs for place in pack.position_ids]], device=self.device),
            use_cache=False,
            segment_masks=[
                segment_mask(segment, dtype=self.dtype, device=self.device)
                for pack in packs
                for segment in pack.segments
            ],
        ).last_hidden_state[0]

    def release(self) -> None:
        """Let go of the adapters of this thread's pass."""
        self._passing.put([])

    @torch.no_grad()
    def sequence_logprobs(self, sequences: Sequence[tuple[Adapter | None, list[int]]]) -> list[list[float]]:
        """For each sequence, the log-probability, at temperature 1, of each token but the first given those before."""
        parts = []
        for adapter, token_ids in sequences:
            length = max(0, len(token_ids) - 1)
            parts.append(
                (adapter, Pack(token_ids[:length], list(range(length)), [Segment(length, ())] if length else []))
            )
        if not any(pack.input_ids for _, pack in parts):
            return [[] for _ in sequences]
        logits = self.output(self.hidden_states(parts)).float()
        self.release()
        targets = torch.tensor([token for _, token_ids in sequences for token in token_ids[1:]], device=self.device)
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None]).squeeze(1)
        return [one.tolist() for one in logprobs.split([len(pack.input_ids) for _, pack in parts])]
