"""The contract, portal to engine: what a job is (``JobSpec``) and the commands that carry it.

Pure pydantic; imported by both sides. Everything is validated here, once: an unknown field is an error, so a misspelt
setting can never be silently ignored. A change of meaning raises ``SPEC_VERSION``.

Invariant: a spec is complete. The engine reads nothing about a job but its spec and the dataset file the spec names,
which it checks against its sha256.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import jsonschema
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SPEC_VERSION = 1

# Celery: the queue the engine bridge consumes and the names of the tasks on it.
ENGINE_QUEUE = "engine"
SUBMIT_JOB = "engine.submit_job"  # (spec: JobSpec as JSON). Idempotent by job_id.
CANCEL_JOB = "engine.cancel_job"  # (job_id: str). Idempotent.
ACKNOWLEDGE_EVENTS = "engine.acknowledge_events"  # (acknowledged: {job_id: highest seq stored by the portal})

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"


class Contract(BaseModel):
    """Base of every contract model: immutable, unknown fields and numbers that are not finite refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# --- base model ------------------------------------------------------------------------------------------------------


class BaseModelSpec(Contract):
    """A frozen causal LM the operator offers. One pool (rollout workers + trainer) serves each."""

    id: str = Field(pattern=NAME_PATTERN)
    """Short name, unique in the installation, e.g. ``smollm2-135m-instruct``."""
    source: Literal["bundled", "huggingface", "local"] = "bundled"
    """Where the weights come from: a pip package that ships them, the Hugging Face hub, or a folder on the engine."""
    location: str = Field(min_length=1, max_length=500)
    """For ``bundled`` the package name, for ``huggingface`` the repository id, for ``local`` an absolute folder."""
    revision: str = Field(default="", max_length=100)
    """Hugging Face revision (commit, tag or branch); empty means the default branch."""
    context_length: int = Field(ge=16, le=1_048_576)
    """Longest prompt plus completion served, in tokens."""
    max_lora_rank: int = Field(default=16, ge=1, le=512)
    """Highest LoRA rank a job may ask for. Keep it as low as needed: serving slows down with it."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of the frozen weights in rollout and trainer."""


# --- dataset ---------------------------------------------------------------------------------------------------------


class Message(Contract):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


class DatasetRow(Contract):
    """One row of a dataset version. In the file: one such JSON object a line."""

    messages: list[Message] = Field(min_length=1)
    """The prompt as a chat. The last message is the user's."""
    answer: str = ""
    """The reference answer graders compare with; may be empty for graders that need none."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything else the tenant sent with the row."""
    split: Literal["train", "held_out"] = "train"
    """Training never sees a ``held_out`` row; evaluation sees nothing else."""

    @field_validator("messages")
    @classmethod
    def _ends_with_user(cls, messages: list[Message]) -> list[Message]:
        if messages[-1].role != "user":
            raise ValueError(f"the last message must have role 'user', not '{messages[-1].role}'")
        return messages


class DatasetRef(Contract):
    """Reference to the rows of one immutable dataset version."""

    path: str = Field(min_length=1)
    """File of JSON lines (``DatasetRow``), absolute, readable by the engine."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the file's bytes; the engine refuses a file that differs."""
    train_rows: int = Field(ge=1)
    held_out_rows: int = Field(ge=0)


# --- rewards ---------------------------------------------------------------------------------------------------------

# Every grader scores one completion of one row in [0, 1]. ``accuracy`` of an episode is 1 where its total is >= 0.999.


class ExactMatch(Contract):
    """1 where the completion equals the row's answer, else 0."""

    type: Literal["exact_match"] = "exact_match"
    ignore_case: bool = False
    strip: bool = True
    """Ignore white space around both."""


class Numeric(Contract):
    """1 where the completion's number equals the answer's within the tolerance.

    The number is the last one in the completion, thousands separators and currency signs allowed.
    """

    type: Literal["numeric"] = "numeric"
    tolerance: float = Field(default=1e-6, ge=0)
    """Absolute tolerance."""


class Maths(Contract):
    """1 where completion and answer are mathematically equivalent (LaTeX or plain), by math-verify."""

    type: Literal["maths"] = "maths"


class Regex(Contract):
    """1 where the pattern is found in the completion, else 0. Python's ``re`` syntax, time-limited."""

    type: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1, max_length=2000)
    full: bool = False
    """The whole completion (stripped) must match."""
    ignore_case: bool = False
    group_equals_answer: bool = False
    """Besides matching, the first group (or the whole match where there is none) must equal the row's answer."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not a valid regular expression: {error}") from None
        return pattern


class JsonSchema(Contract):
    """1 where the completion is JSON that satisfies the schema (draft 2020-12), else 0."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any]

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"not a valid JSON schema: {error.message}") from None
        return schema


class Brevity(Contract):
    """1 up to ``target`` characters, falling linearly to 0 at ``limit``: shapes length; use it inside a mix."""

    type: Literal["brevity"] = "brevity"
    target: int = Field(ge=1)
    limit: int = Field(ge=2)

    @model_validator(mode="after")
    def _ordered(self) -> Brevity:
        if self.limit <= self.target:
            raise ValueError("limit must be greater than target")
        return self


class MixPart(Contract):
    """One named, weighted part of a mix."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    weight: float = Field(gt=0, le=1000)
    grader: SimpleGrader


class Mix(Contract):
    """Weighted mean of named graders: sum(weight * score) / sum(weight)."""

    type: Literal["mix"] = "mix"
    parts: list[MixPart] = Field(min_length=1, max_length=16)

    @field_validator("parts")
    @classmethod
    def _unique(cls, parts: list[MixPart]) -> list[MixPart]:
        names = [part.name for part in parts]
        if len(set(names)) != len(names):
            raise ValueError("two parts have the same name")
        return parts


SimpleGrader = Annotated[ExactMatch | Numeric | Maths | Regex | JsonSchema | Brevity, Field(discriminator="type")]
Grader = Annotated[
    ExactMatch | Numeric | Maths | Regex | JsonSchema | Brevity | Mix,
    Field(discriminator="type"),
]
MixPart.model_rebuild()
Mix.model_rebuild()


class RewardSpec(Contract):
    """How an episode is scored."""

    grader: Grader
    timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    """Wall-clock limit of one grading. Past it the grading process is killed and the episode scores 0, as an error."""


# --- settings --------------------------------------------------------------------------------------------------------


class SingleTurn(Contract):
    """The model answers once; the episode ends."""

    type: Literal["single_turn"] = "single_turn"
    system_prompt: str = Field(default="", max_length=8000)
    """Put before the row's messages where they have no system message of their own."""


class SamplingSettings(Contract):
    """How completions are drawn in training.

    There is no top-p, top-k or penalty on purpose: truncating the distribution biases the importance ratio
    (the sampled policy would no longer be the trained one).
    """

    temperature: float = Field(default=1.0, gt=0, le=2)
    max_tokens: int = Field(default=64, ge=1, le=131_072)
    """Longest completion, in tokens, the end-of-turn token included."""


class TrainingSettings(Contract):
    """Group-relative policy optimization (GRPO, arXiv 2402.03300) with truncated importance sampling."""

    algorithm: Literal["grpo"] = "grpo"
    steps: int = Field(default=20, ge=1, le=100_000)
    """Optimizer steps; each commits one adapter version."""
    prompts_per_step: int = Field(default=8, ge=1, le=4096)
    group_size: int = Field(default=8, ge=2, le=256)
    """Episodes that answer one prompt; advantages are relative to their mean."""
    learning_rate: float = Field(default=2e-4, gt=0, le=1)
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly from 0."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The policy ratio counts no lower than 1 - clip_low where that would raise the objective."""
    clip_high: float = Field(default=0.28, gt=0)
    """The policy ratio counts no higher than 1 + clip_high where that would raise the objective."""
    importance_cap: float = Field(default=2.0, ge=1)
    """Truncation of the trainer-to-sampler importance weight of a token."""


class LoraSettings(Contract):
    """Low-rank adapter (arXiv 2106.09685) on every linear layer of the blocks."""

    rank: int = Field(default=16, ge=1, le=512)
    alpha: float = Field(default=32, gt=0, le=4096)
    """Scale: alpha / rank, or alpha / sqrt(rank) with ``use_rslora``."""
    use_rslora: bool = False


class EvaluationSettings(Contract):
    """Greedy evaluation on held-out rows. The base is evaluated before the first step, the adapter after the last."""

    every_steps: int = Field(default=0, ge=0)
    """Evaluate after every n-th step too; 0 means only at the start and the end."""
    max_rows: int = Field(default=64, ge=1, le=100_000)
    """At most so many held-out rows, the first ones of the file."""
    patience: int = Field(default=0, ge=0, le=10_000)
    """Early stopping: end the job after so many evaluations in a row without improvement; 0 means never."""
    min_delta: float = Field(default=0.0, ge=0, le=1)
    """What counts as improvement: accuracy up by at least this or, where accuracy did not fall, the mean reward."""

    @model_validator(mode="after")
    def _has_something_to_wait_for(self) -> EvaluationSettings:
        if self.patience and not self.every_steps:
            raise ValueError(
                "patience needs evaluations during training: set every_steps, or patience to 0 for no early stopping"
            )
        return self


class Limits(Contract):
    """What stops a job; the adapter committed so far is kept."""

    max_wall_seconds: int = Field(default=24 * 3600, ge=1)
    """Wall-clock time since the job first ran."""
    max_batches_without_signal: int = Field(default=5, ge=1, le=1000)
    """So many batches in a row in which no group's rewards vary end the job: there is nothing to learn from."""


class JobSpec(Contract):
    """One fine-tuning run of one tenant."""

    spec_version: Literal[1] = 1
    job_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """UUID4 in hexadecimal, never used twice. Adapter versions are named ``job-<job_id>@v<n>``."""
    tenant_id: str = Field(min_length=1, max_length=64)
    name: str = Field(default="", max_length=200)
    base_model: BaseModelSpec
    dataset: DatasetRef
    reward: RewardSpec
    environment: SingleTurn = SingleTurn()
    sampling: SamplingSettings = SamplingSettings()
    training: TrainingSettings = TrainingSettings()
    lora: LoraSettings = LoraSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    limits: Limits = Limits()
    weight: float = Field(default=1.0, gt=0, le=1000)
    """The tenant's share of rollout and trainer relative to other tenants."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Determines adapter initialisation, data order and sampling."""

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
        if self.evaluation.patience and not self.dataset.held_out_rows:
            raise ValueError(
                "evaluation.patience needs held-out rows and this dataset has none: keep some back, or set it to 0"
            )
        return self


def adapter_name(job_id: str, version: int) -> str:
    """Name of an adapter version: ``job-<id>@v<n>``. Immutable content, never used twice."""
    return f"job-{job_id}@v{version}"
