"""Where and how large the engine runs: ``MARLAAS_<FIELD>`` in the environment, e.g. ``MARLAAS_ROLLOUT_WORKERS=2``.

Nothing here changes a result, only speed and placement.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineConfig(BaseSettings):
    """Settings of one engine."""

    # What is set to nothing counts as not set: an empty MARLAAS_VAR would put everything where one happens to stand.
    model_config = SettingsConfigDict(env_prefix="MARLAAS_", env_ignore_empty=True, extra="ignore", frozen=True)

    var: Path = Path("var")
    """Folder of everything written; on a cluster a folder all nodes share. The portal has the same."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1)
    """Threads of each rollout worker and of the trainer on CPU, which divides them between passes side by side."""

    rollout_workers: int = Field(default=1, ge=1)
    """Rollout workers per pool, until the operator asks for another number (``engine.scale_pool``)."""
    rollout_resources: dict[str, float] = {}
    """Resources, as named by ``ray start --resources``, that Ray reserves for a rollout worker, as JSON: ``{"rollout":
    1}``. They say on which nodes of a cluster workers run, and how many on each; without them workers are spread."""
    rollout_gpus: float = Field(default=0.5, ge=0)
    """GPUs Ray reserves for a rollout worker (device cuda). 0.5 and 0.5 put rollout and trainer on one GPU."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs one rollout worker spreads the model over; needs rollout_gpus = tensor_parallel_size."""
    gpu_memory_utilization: float = Field(default=0.45, gt=0, le=1)
    """Share of a GPU's memory vLLM takes for weights and KV cache."""
    kv_cache_gib: float = Field(default=1.0, gt=0)
    """KV cache of a rollout worker on CPU, in GiB."""
    adapter_slots: int = Field(default=32, ge=1)
    """Adapters that may share a rollout worker's batch (vLLM's max_loras). Each takes a slot as wide as the base
    model's highest rank, 10 MB for a base of 135M at rank 16. More jobs than slots are served by reloading."""
    max_sequences: int = Field(default=128, ge=1)
    """Sequences a rollout worker decodes at once."""

    trainer_gpus: float = Field(default=0.5, ge=0)
    trainer_resources: dict[str, float] = {}
    """The same for the trainer; without them a trainer on CPU runs beside the controller."""
    trainer_token_budget: int = Field(default=1024, ge=64)
    """Tokens under way at once in forward and backward passes. Larger batches are accumulated; a group of one prompt
    that is longer than its share counts alone."""
    trainer_resident_gib: float = Field(default=3.0, ge=0)
    """Memory for the adapters and optimizers of jobs that are not in the lane: the least recently trained beyond it are
    read from the store again when their turn comes. 32 jobs of rank 16 on a base of 135M take 2.4 GiB."""

    grader_workers: int = Field(default=2, ge=2)
    """Processes that grade, beside the engine. At least 2, so that one that hangs does not stop the others."""
    remote_environments_allow_private: bool = False
    """Environments on tenants' servers may have private, loopback and link-local addresses. Leave it off where tenants
    are not trusted with what this machine can reach."""
    probe_tolerance: float = Field(default=0.35, gt=0)
    """Largest mean absolute difference of the probe's log-probabilities, trainer's to rollout's, after a publish."""

    @property
    def root(self) -> Path:
        """Folder of the engine's own state."""
        return self.var.resolve() / "engine"

    @property
    def models(self) -> Path:
        """Folder of prepared base models."""
        return self.var.resolve() / "models"

    @property
    def tenant_files(self) -> Path:
        """Folder of what tenants uploaded for their environments; see ``engine.environments.files``."""
        return self.var.resolve() / "tenants"

    def job_dir(self, job_id: str) -> Path:
        """Folder of a job's adapter versions."""
        return self.root / "jobs" / job_id
