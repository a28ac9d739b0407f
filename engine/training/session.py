"""One job's training state in memory: adapter, AdamW, and their way to and from the store.

Invariant: a session loaded from a commit continues bit for bit as the session that made the commit would have.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.spec import JobSpec
from engine.store import CONFIG_FILE, OPTIMIZER_FILE, commit_version
from engine.training.errors import TrainingError
from engine.training.lora import Adapter, export_adapter, load_adapter
from engine.training.model import BaseModel
from engine.training.schedule import learning_rate
from engine.types import Commit

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Session:
    """Adapter and optimizer of one job, at the state of its last commit between steps."""

    def __init__(self, spec: JobSpec, model: BaseModel):
        self.spec = spec
        self.adapter = Adapter(model.layers, spec.lora, model.device)
        self.adapter.initialise(spec.seed)
        self.optimizer = torch.optim.AdamW(
            [self.adapter.flat],
            lr=spec.training.learning_rate,
            betas=(spec.training.adam_beta1, spec.training.adam_beta2),
            weight_decay=spec.training.weight_decay,
        )

    @property
    def size_bytes(self) -> int:
        """Memory it takes: weights, gradient and the two moments."""
        flat = self.adapter.flat
        return (2 + len(_MOMENTS)) * flat.numel() * flat.element_size()

    def start_from(self, folder: Path) -> None:
        """Take over the weights of another adapter; the optimizer starts fresh. Raises TrainingError."""
        lora = self.spec.lora
        try:
            config = json.loads((folder / CONFIG_FILE).read_text())
        except OSError:
            raise TrainingError("the adapter to start from is not in the store any more") from None
        theirs = (config["r"], config["lora_alpha"], bool(config.get("use_rslora")))
        if theirs != (lora.rank, lora.alpha, lora.use_rslora):
            raise TrainingError(
                f"the adapter to start from has rank {theirs[0]}, alpha {theirs[1]:g} and rsLoRA {theirs[2]}; "
                "give the job the same"
            )
        load_adapter(folder, self.adapter)

    def restore(self, commit: Commit) -> None:
        """Take over the state of a commit."""
        folder = Path(commit.path)
        load_adapter(folder, self.adapter)
        tensors = load_file(folder / OPTIMIZER_FILE)
        if "step" not in tensors:
            return  # version 0: the optimizer has no state before its first update
        state: dict[str, torch.Tensor] = {"step": tensors["step"]}
        for moment in _MOMENTS:
            state[moment] = torch.zeros_like(self.adapter.flat.data)
            self.adapter.load(state[moment], tensors, f"{moment}.")
        self.optimizer.state[self.adapter.flat] = state

    def commit(self, job_dir: str, *, step: int, cursor: int, metrics: dict[str, float]) -> Commit:
        """Commit the present state as version ``step``."""
        return commit_version(
            job_dir,
            job_id=self.spec.job_id,
            step=step,
            cursor=cursor,
            # Training draws no random numbers and data order is a function of (seed, cursor): the seed is the state.
            rng={"seed": self.spec.seed},
            rank=self.spec.lora.rank,
            metrics=metrics,
            write_files=self._write_files,
        )

    def clear_gradient(self) -> None:
        self._gradient.zero_()

    def gradient_norm(self, divisor: int) -> float:
        """Turn the accumulated sum over tokens into their mean; returns its Euclidean norm."""
        self._gradient.div_(divisor)
        return float(self._gradient.norm())

    def apply_update(self, step: int, norm: float) -> None:
        """One AdamW update with the gradient, whose norm is ``norm``, clipped to the job's maximum."""
        maximum = self.spec.training.max_grad_norm
        if norm > maximum:
            self._gradient.mul_(maximum / norm)
        self.optimizer.param_groups[0]["lr"] = learning_rate(self.spec.training, step)
        self.optimizer.step()

    @property
    def _gradient(self) -> torch.Tensor:
        assert self.adapter.flat.grad is not None
        return self.adapter.flat.grad

    def _write_files(self, folder: Path) -> None:
        export_adapter(folder, self.adapter, self.spec.lora, self.spec.base_model)
        tensors: dict[str, torch.Tensor] = {}
        state = self.optimizer.state.get(self.adapter.flat)
        if state:
            tensors["step"] = state["step"]
            for moment in _MOMENTS:
                for name, view in self.adapter.views(state[moment]).items():
                    tensors[f"{moment}.{name}"] = view.cpu()
        save_file(tensors, folder / OPTIMIZER_FILE)
