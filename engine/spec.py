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
CONTROL_JOB = "engine.control_job"  # (job_id: str, control: JobControl as JSON). The highest revision wins.
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


Algorithm = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "reinforce_pp_baseline"]
"""How a batch becomes an update; each is a module of ``engine.training.losses`` that names its paper."""

_TOKEN_CLIPPED = ("grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "reinforce_pp_baseline")
_USED_BY: dict[str, tuple[str, ...]] = {
    "clip_low": _TOKEN_CLIPPED,
    "clip_high": _TOKEN_CLIPPED,
    "sequence_clip_low": ("gspo",),
    "sequence_clip_high": ("gspo",),
    "ratio_cap": ("cispo",),
}
"""Settings that only some algorithms read. With another one they must stay at their defaults."""


class TrainingSettings(Contract):
    """How an adapter is trained: the algorithm, its optimizer, and how far it may move.

    A setting without effect under the others is refused where it is not at its default.
    """

    algorithm: Algorithm = "grpo"
    steps: int = Field(default=20, ge=1, le=100_000)
    """Steps; each commits one adapter version."""
    prompts_per_step: int = Field(default=8, ge=1, le=4096)
    group_size: int = Field(default=8, ge=2, le=256)
    """Episodes that answer one prompt; advantages are relative to their mean."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """A batch may be drawn by a version up to so many steps older than the one it trains. 0 is strictly on-policy;
    1 and more draw the next batches while one is trained, with importance correction."""
    epochs: int = Field(default=1, ge=1, le=16)
    """Passes over a batch. From the second update of a batch on, clipping bounds how far the policy moves."""
    minibatches: int = Field(default=1, ge=1, le=64)
    """Optimizer updates in one pass, each on its share of the batch's groups; at most ``prompts_per_step``."""
    learning_rate: float = Field(default=2e-4, gt=0, le=1)
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up: as it is, or down to 0, reached just after the last step."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean gradient."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the mean squared gradient."""
    max_grad_norm: float = Field(default=1.0, gt=0)

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The policy ratio counts no lower than 1 - clip_low where that would raise the objective. Not with gspo, cispo."""
    clip_high: float = Field(default=0.28, gt=0)
    """The policy ratio counts no higher than 1 + clip_high where that would raise the objective. Likewise."""
    sequence_clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """As ``clip_low``, for the ratio of a whole episode, which moves far less. Only with gspo."""
    sequence_clip_high: float = Field(default=4e-4, gt=0)
    """As ``clip_high``, for the ratio of a whole episode. Only with gspo."""
    ratio_cap: float = Field(default=5.0, ge=1)
    """The policy ratio weighs a token by no more than this; no token loses its gradient. Only with cispo."""

    importance: Literal["truncate", "mask"] = "truncate"
    """What is done with a token whose trainer-to-sampler importance weight is out of bounds: ``truncate`` lets it count
    with ``importance_cap``; ``mask`` leaves it out."""
    importance_cap: float = Field(default=2.0, ge=1)
    """Upper bound of the trainer-to-sampler importance weight of a token."""
    importance_floor: float = Field(default=0.0, ge=0, lt=1)
    """Lower bound of that weight, for ``mask`` only: a token below it is left out."""

    kl_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the KL divergence from the base model in the loss; with 0 the base is not even computed."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated from a sampled token (http://joschu.net/blog/kl-approx.html); k1 counts as a
    cost in the reward, since the gradient of k1 itself is 0 in the mean. Only with ``kl_coefficient``."""
    entropy_coefficient: float = Field(default=0.0, ge=0, le=1)
    """Weight of the policy's entropy, as a bonus, in the loss."""

    overlong_buffer: int | None = Field(default=None, ge=0)
    """Soft punishment of length (DAPO): over the last so many tokens before ``sampling.max_tokens`` up to 1 is taken
    from the reward, linearly. 0: none. By default a fifth of ``max_tokens`` for dapo and none for the others."""
    max_sampling_rounds: int | None = Field(default=None, ge=1, le=64)
    """Dynamic sampling (DAPO): groups that teach nothing are replaced by those of further prompts, in at most so many
    rounds of rollout a step. 1: no replacement. By default 3 for dapo and 1 for the others."""

    @property
    def sampling_rounds(self) -> int:
        """``max_sampling_rounds`` or the algorithm's own."""
        return self.max_sampling_rounds or (3 if self.algorithm == "dapo" else 1)

    def overlong_tokens(self, max_tokens: int) -> int:
        """``overlong_buffer`` or the algorithm's own, for completions of at most ``max_tokens``."""
        if self.overlong_buffer is not None:
            return self.overlong_buffer
        return max_tokens // 5 if self.algorithm == "dapo" else 0

    @model_validator(mode="after")
    def _every_setting_has_effect(self) -> TrainingSettings:
        for name, algorithms in _USED_BY.items():
            if self.algorithm not in algorithms and self._is_set(name):
                raise ValueError(
                    f"{name} has no effect with algorithm {self.algorithm}: leave it out, "
                    f"or choose one of {', '.join(algorithms)}"
                )
        if self.importance != "mask" and self._is_set("importance_floor"):
            raise ValueError("importance_floor has no effect unless importance is 'mask'")
        if self.kl_coefficient == 0 and self._is_set("kl_estimator"):
            raise ValueError("kl_estimator has no effect while kl_coefficient is 0")
        if self.algorithm == "reinforce_pp" and self.sampling_rounds > 1:
            raise ValueError(
                "max_sampling_rounds has no effect with algorithm reinforce_pp, which learns from groups whose rewards "
                "are all equal too; reinforce_pp_baseline does not"
            )
        return self

    @model_validator(mode="after")
    def _amounts_fit(self) -> TrainingSettings:
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"minibatches {self.minibatches} is more than the {self.prompts_per_step} groups of a batch: "
                "lower it or raise prompts_per_step"
            )
        if self.schedule != "constant" and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} leaves none of the {self.steps} steps for schedule {self.schedule}"
            )
        return self

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)


TargetModule = Literal[
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"
]
"""Linear layers of the blocks, by the last part of their names; a base model has some of them."""


class LoraSettings(Contract):
    """Low-rank adapter (arXiv 2106.09685) on linear layers of the blocks."""

    rank: int = Field(default=16, ge=1, le=512)
    alpha: float = Field(default=32, gt=0, le=4096)
    """Scale: alpha / rank, or alpha / sqrt(rank) with ``use_rslora``."""
    use_rslora: bool = False
    target_modules: list[TargetModule] = Field(default_factory=list)
    """The layers that carry an adapter; empty means all of the base model's."""

    @field_validator("target_modules")
    @classmethod
    def _different(cls, modules: list[TargetModule]) -> list[TargetModule]:
        if len(set(modules)) != len(modules):
            raise ValueError("a target module is named twice")
        return modules


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
    max_tokens_sampled: int | None = Field(default=None, ge=1)
    """Tokens sampled for training and evaluation."""
    max_tokens_trained: int | None = Field(default=None, ge=1)
    max_accelerator_seconds: float | None = Field(default=None, gt=0)
    """Seconds of the trainer, and of rollout workers, whose time is split between the requests they serve at once."""
    max_batches_without_signal: int = Field(default=5, ge=1, le=1000)
    """So many batches in a row in which no group's rewards vary end the job: there is nothing to learn from."""


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
        if self.evaluation.patience and not self.dataset.held_out_rows:
            raise ValueError(
                "evaluation.patience needs held-out rows and this dataset has none: keep some back, or set it to 0"
            )
        return self


def adapter_name(job_id: str, version: int) -> str:
    """Name of an adapter version: ``job-<id>@v<n>``. Immutable content, never used twice."""
    return f"job-{job_id}@v{version}"


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
