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


class ReasoningGymScore(Contract):
    """The scorer of a reasoning-gym dataset: partial credit where that dataset gives it.

    What stands in the completion's last ``<answer>`` tag is scored, and the whole completion where there is none. The
    row is a reasoning-gym entry: its last message the question, its answer and metadata the entry's.
    """

    type: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: str = Field(pattern=r"^[a-z0-9_]{1,64}$")
    """Name of a reasoning-gym dataset, e.g. ``countdown``."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Its settings, as the rows were made with."""


class EnvironmentReward(Contract):
    """What the environment itself says of the episode: one of its reward parts, ``low``..``high`` mapped to 0..1.

    Values beyond are clipped. An episode that a limit ended before the environment gave the part scores 0.
    """

    type: Literal["environment"] = "environment"
    part: str = Field(default="reward", pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Name of the part. Environments with one reward call it ``reward``."""
    low: float = 0.0
    high: float = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> EnvironmentReward:
        if self.high <= self.low:
            raise ValueError("high must be greater than low")
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


SimpleGrader = Annotated[
    ExactMatch | Numeric | Maths | Regex | JsonSchema | Brevity | ReasoningGymScore | EnvironmentReward,
    Field(discriminator="type"),
]
Grader = Annotated[
    ExactMatch | Numeric | Maths | Regex | JsonSchema | Brevity | ReasoningGymScore | EnvironmentReward | Mix,
    Field(discriminator="type"),
]
MixPart.model_rebuild()
Mix.model_rebuild()


class RewardSpec(Contract):
    """How an episode is scored."""

    grader: Grader
    timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    """Wall-clock limit of one grading. Past it the grading process is killed and the episode scores 0, as an error."""


# --- environments ----------------------------------------------------------------------------------------------------


class SingleTurn(Contract):
    """The model answers once; the episode ends."""

    type: Literal["single_turn"] = "single_turn"
    system_prompt: str = Field(default="", max_length=8000)
    """Put before the row's messages where they have no system message of their own."""


class MultiTurn(Contract):
    """What every environment of several turns has. ``sampling.max_tokens`` limits each turn.

    Graders see the model's last reply. An episode that a limit ends is scored as far as it got, and marked truncated.
    """

    system_prompt: str = Field(default="", max_length=8000)
    """Put before the row's messages where they have no system message of their own."""
    max_turns: int = Field(default=8, ge=1, le=256)
    """Replies of the model in one episode."""
    max_episode_tokens: int = Field(default=0, ge=0, le=1_048_576)
    """Tokens after the prompt, the environment's included; 0 means as many as the context leaves."""
    step_timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Wall-clock limit of one answer of the environment. Past it the episode scores 0, as an error."""
    max_observation_characters: int = Field(default=20_000, ge=100, le=1_000_000)
    """Longest answer of the environment. One that is longer ends the episode, which scores 0, as an error."""


class Tools(MultiTurn):
    """The model may call tools; the first reply without a call ends the episode.

    A call is ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen) or a fenced block of such
    JSON. The system message describes the tools. Reward parts: ``tool_calls``, ``malformed_calls``.
    """

    type: Literal["tools"] = "tools"
    tools: list[Literal["calculator", "search"]] = Field(default=["calculator"], min_length=1)
    documents_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """What ``search`` finds, besides the ``documents`` in a row's metadata (a list of texts, or of objects with
    ``text`` and optionally ``title``): an uploaded file of such objects, one JSON object a line, named by its
    sha256."""
    search_results: int = Field(default=3, ge=1, le=20)
    """Documents one search returns."""

    @field_validator("tools")
    @classmethod
    def _once(cls, tools: list[str]) -> list[str]:
        if len(set(tools)) != len(tools):
            raise ValueError("a tool is named twice")
        return tools


class ReasoningGym(Contract):
    """Tasks of a reasoning-gym dataset, answered in one turn and scored by its own scorer.

    Without a dataset of its own the job draws generated tasks: ``train_rows`` and ``held_out_rows`` of them. With one,
    its rows are reasoning-gym entries (question, answer, metadata). The grader ``environment`` is the dataset's scorer.
    """

    type: Literal["reasoning_gym"] = "reasoning_gym"
    system_prompt: str = Field(default="", max_length=8000)
    """Put before the row's messages where they have no system message of their own."""
    dataset: str = Field(pattern=r"^[a-z0-9_]{1,64}$")
    """Name of the reasoning-gym dataset, e.g. ``countdown``."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Its settings, e.g. ``{"min_numbers": 3}``; ``size`` and ``seed`` are not among them."""
    train_rows: int = Field(default=1000, ge=1, le=100_000)
    held_out_rows: int = Field(default=64, ge=0, le=10_000)
    tasks_seed: int = Field(default=0, ge=0, lt=2**31)
    """Which tasks are generated."""

    @field_validator("config")
    @classmethod
    def _free(cls, config: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted({"size", "seed"} & config.keys()):
            raise ValueError(f"{taken[0]} cannot be set here; use train_rows, held_out_rows and tasks_seed")
        return config


class HttpEnvironment(MultiTurn):
    """What environments behind an address have in common."""

    url: str = Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500)
    """Base address, without user, query or fragment. Private, loopback and link-local addresses need the operator's
    leave."""
    token_name: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9._-]{0,63})?$")
    """Name of a stored token of the tenant, sent as ``Authorization: Bearer``; never the token itself."""


class Remote(HttpEnvironment):
    """A server of the tenant that plays the environment, by the protocol of ``engine.environments.remote``."""

    type: Literal["remote"] = "remote"


class OpenEnv(HttpEnvironment):
    """A server of the OpenEnv standard. Its rewards are summed up as the reward part ``reward``."""

    type: Literal["openenv"] = "openenv"
    action_field: str = Field(default="message", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
    """Field of the action that the model's reply is put in."""
    action: dict[str, Any] = Field(default_factory=dict)
    """The action's other fields, the same at every step."""
    observation_field: str = Field(default="", max_length=64)
    """Field of the observation shown to the model; empty shows all of it, as JSON."""


Environment = Annotated[SingleTurn | Tools | ReasoningGym | Remote | OpenEnv, Field(discriminator="type")]


# --- settings --------------------------------------------------------------------------------------------------------


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
    dataset: DatasetRef | None = None
    """None only where the environment makes its own rows (``reasoning_gym``)."""
    reward: RewardSpec
    environment: Environment = SingleTurn()
    """Without a ``type``, a single turn."""
    sampling: SamplingSettings = SamplingSettings()
    training: TrainingSettings = TrainingSettings()
    lora: LoraSettings = LoraSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    limits: Limits = Limits()
    weight: float = Field(default=1.0, gt=0, le=1000)
    """The tenant's share of rollout and trainer relative to other tenants."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Determines adapter initialisation, data order and sampling."""

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
        return self


def adapter_name(job_id: str, version: int) -> str:
    """Name of an adapter version: ``job-<id>@v<n>``. Immutable content, never used twice."""
    return f"job-{job_id}@v{version}"
