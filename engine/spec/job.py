"""A job as a whole, and what its tenant wants of it later."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from engine.spec.contract import Contract
from engine.spec.data import BaseModelSpec, DatasetRef
from engine.spec.environments import Environment, ReasoningGym, SingleTurn
from engine.spec.rewards import EnvironmentReward, Mix, RewardErrorPolicy, RewardSpec
from engine.spec.training import EvaluationSettings, Limits, LoraSettings, SamplingSettings, TrainingSettings


class StartFrom(Contract):
    """An adapter version of the same tenant to continue from: its weights, with a fresh optimizer."""

    job_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    version: int = Field(ge=1)


class JobSpec(Contract):
    """One fine-tuning run of one tenant."""

    spec_version: Literal[1] = 1
    job_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """UUID4 in hexadecimal, never used twice. Adapter versions are named ``job-<job_id>@v<n>``."""
    tenant_id: str = Field(min_length=1, max_length=64)
    name: str = Field(default="", max_length=200)
    base_model: BaseModelSpec
    dataset: DatasetRef | None = None
    """None only where the environment makes its own rows (``reasoning_gym``)."""
    reward: RewardSpec
    reward_errors: RewardErrorPolicy = RewardErrorPolicy()
    environment: Environment = SingleTurn()
    """Without a ``type``, a single turn."""
    sampling: SamplingSettings = SamplingSettings()
    training: TrainingSettings = TrainingSettings()
    lora: LoraSettings = LoraSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    limits: Limits = Limits()
    start_from: StartFrom | None = None
    """Begin from this adapter; rank, alpha and rsLoRA must be its own. None: from the base model."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """The tenant's share of rollout and trainer relative to other tenants."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Determines adapter initialisation, data order and sampling."""

    @property
    def held_out_rows(self) -> int:
        """Of the dataset, or of what the environment generates in its place."""
        if self.dataset is not None:
            return self.dataset.held_out_rows
        return self.environment.held_out_rows if isinstance(self.environment, ReasoningGym) else 0

    @field_validator("environment", mode="before")
    @classmethod
    def _single_turn_by_default(cls, environment: Any) -> Any:
        if isinstance(environment, dict) and "type" not in environment:
            return {"type": "single_turn", **environment}
        return environment

    @model_validator(mode="after")
    def _environment_serves(self) -> JobSpec:
        if self.dataset is None and not isinstance(self.environment, ReasoningGym):
            raise ValueError(f"a dataset is needed: environment {self.environment.type} makes no rows of its own")
        grader = self.reward.grader
        graders = [part.grader for part in grader.parts] if isinstance(grader, Mix) else [grader]
        if isinstance(self.environment, SingleTurn) and any(isinstance(one, EnvironmentReward) for one in graders):
            raise ValueError("the grader environment needs an environment that gives rewards; single_turn gives none")
        return self

    @model_validator(mode="after")
    def _fits(self) -> JobSpec:
        model = self.base_model
        if self.lora.rank > model.max_lora_rank:
            raise ValueError(
                f"lora.rank {self.lora.rank} is above the limit of {model.max_lora_rank} for base model {model.id}"
            )
        if self.sampling.max_tokens >= model.context_length:
            raise ValueError(
                f"sampling.max_tokens {self.sampling.max_tokens} leaves no room for a prompt in the context of "
                f"{model.context_length} tokens of base model {model.id}"
            )
        if (self.training.overlong_buffer or 0) > self.sampling.max_tokens:
            raise ValueError(
                f"training.overlong_buffer {self.training.overlong_buffer} is longer than a completion may be "
                f"(sampling.max_tokens {self.sampling.max_tokens})"
            )
        if self.evaluation.patience and not self.held_out_rows:
            raise ValueError(
                "evaluation.patience needs held-out rows and this dataset has none: keep some back, or set it to 0"
            )
        return self


def adapter_name(job_id: str, version: int) -> str:
    """Name of an adapter version: ``job-<id>@v<n>``. Immutable content, never used twice."""
    return f"job-{job_id}@v{version}"


class PoolControl(Contract):
    """What the operator wants of the pool of one base model, as a whole: sending it again, or an older one late,
    changes nothing. It outlives restarts; before the first one the engine's configuration counts."""

    revision: int = Field(ge=1)
    """Counts the operator's changes; the engine goes by the highest it has seen."""
    rollout_workers: int = Field(ge=1, le=256)
    """Rollout workers wanted. One that is added serves once it has every published adapter version; one that is
    taken away first finishes what it has begun."""


class JobControl(Contract):
    """What a tenant wants of a submitted job, as a whole: sending it again, or an older one late, changes nothing."""

    revision: int = Field(ge=1)
    """Counts the tenant's changes; the engine goes by the highest it has seen."""
    paused: bool = False
    """A paused job gives up its place in rollout and trainer; it goes on from its last committed step."""
    cancelled: bool = False
    """Final."""
    priority: int = Field(default=0, ge=-10, le=10)
    """Among the tenant's own jobs: the highest goes first."""
    steps: int | None = Field(default=None, ge=1, le=100_000)
    """Replaces ``training.steps``; not below the steps already committed. None: as submitted."""
    reason: str = Field(default="", max_length=500)
    """Why it is paused, a sentence for the tenant, where the service did so and will let it go on by itself; empty
    where a person asked for it."""
