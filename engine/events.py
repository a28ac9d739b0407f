"""The contract, engine to portal: what the engine reports.

Invariants: the events of a job are numbered 1, 2, 3, ... without gaps (``seq``); an event is delivered at least once
and never changes, so the portal stores it by (job_id, seq) and ignores repeats; the engine keeps it until the portal
acknowledges it (``engine.acknowledge_events``). Batches may arrive out of order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from engine.spec import Contract

EVENTS_VERSION = 1

# Celery: the queue the portal's event worker consumes and the task on it.
EVENTS_QUEUE = "events"
INGEST_EVENTS = "portal.ingest_events"  # (batch: EventBatch as JSON text; earlier engines sent an object). Idempotent.
ENGINE_READY = "portal.engine_ready"  # (). The engine (re)started: the portal sends again what it has no answer to.

JobStatus = Literal["queued", "preparing", "running", "paused", "succeeded", "failed", "cancelled"]
TERMINAL_STATUSES: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})

Stage = Literal["queue", "prepare", "rollout", "environment", "train", "publish", "evaluate"]


class StatusChanged(Contract):
    """The job entered a state."""

    type: Literal["status"] = "status"
    status: JobStatus
    reason: str
    """Why, in plain words for the tenant."""
    next: str = ""
    """What happens next, or what to do; empty where nothing follows."""


class StepCommitted(Contract):
    """One optimizer step was committed, as one adapter version. The version is in the store before this is said."""

    type: Literal["step"] = "step"
    step: int = Field(ge=1)
    adapter_version: int = Field(ge=1)
    metrics: dict[str, float]
    """Finite numbers; one that is not defined for a step is absent.

    Of the batch: reward_mean, reward_std, reward_<part>, accuracy, zero_variance_groups, completion_tokens_mean,
    truncated_fraction, reward_errors (episodes), dropped_episodes and dropped_groups (not trained because of reward
    errors; the reward's numbers are without them), tokens_sampled, staleness_mean and staleness_max (versions
    between an episode's policy and the one trained), accelerator_seconds (of trainer and rollout).

    Of the training, means over the step's ``updates`` optimizer updates: loss, grad_norm (before clipping),
    learning_rate; over the trained tokens: entropy (nats), kl (to the base, with a KL term), ratio_mean, ratio_max
    (policy against the policy before the step), clip_fraction = clip_low_fraction + clip_high_fraction,
    importance_mean, importance_max, importance_bounded_fraction (trainer against sampler: bounded weight, share of
    tokens truncated or masked), logprob_gap (mean distance of trainer and sampler, nats); tokens_trained (a token
    passed twice counts twice), train_tokens_per_second.

    Seconds: rollout_seconds and environment_seconds (the time in which the batch was drawn, shared between the two by
    how many episodes were in each), train_seconds, commit_seconds (writing the version), publish_seconds (the
    commit included). probe_gap: mean distance, in nats, of trainer and rollout on a probe after the publish."""


class Episode(Contract):
    """One trajectory as shown to a person."""

    completion: str
    """What the model said; in several turns all that was said, the environment's messages with their role before
    them."""
    reward: float
    parts: dict[str, float]
    reason: str = ""
    """What the grader says, or the error that made the reward 0."""
    error: bool = False
    advantage: float = 0.0
    tokens: int = Field(ge=0)
    truncated: bool = False
    """A limit ended it: of tokens before the model ended its turn, or of turns or tokens of an episode."""
    adapter_version: int = Field(ge=0)


class RolloutGroup(Contract):
    """The G episodes that answered one prompt."""

    type: Literal["rollout"] = "rollout"
    step: int = Field(ge=1)
    """The step these episodes were drawn for."""
    row: int = Field(ge=0)
    """Line of the dataset file, counted from 0."""
    prompt: str
    """The last user message."""
    answer: str
    episodes: list[Episode]


class Evaluated(Contract):
    """A greedy evaluation on held-out rows."""

    type: Literal["evaluation"] = "evaluation"
    step: int = Field(ge=0)
    adapter_version: int | None
    """None for the base model without adapter."""
    rows: int = Field(ge=0)
    accuracy: float
    reward_mean: float
    best: bool = False
    """No adapter version evaluated before was better: it is the job's best until another evaluation says so."""


class RewardError(Contract):
    """One of the first five episodes of a job whose reward, or environment, failed: all there is to find out why."""

    type: Literal["reward_error"] = "reward_error"
    step: int = Field(ge=0)
    """The step it was drawn for, or whose version was evaluated (0: the base)."""
    row: int = Field(ge=0)
    """Line of the dataset file, counted from 0."""
    evaluation: bool = False
    """It is an episode of an evaluation."""
    completion: str
    """As in ``Episode``."""
    kind: str = ""
    """What kind of failure, e.g. ``timed_out`` or ``exception``; empty where it is not known."""
    reason: str
    details: str = ""
    """Traceback with line numbers, or what else explains it."""
    console: str = ""
    """What the reward printed."""


class AdapterPublished(Contract):
    """An adapter version is in the store, complete."""

    type: Literal["adapter"] = "adapter"
    adapter_version: int = Field(ge=0)
    name: str
    step: int = Field(ge=0)
    path: str
    """Folder with adapter_model.safetensors and adapter_config.json, absolute."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of adapter_model.safetensors."""
    size_bytes: int = Field(ge=1)
    rank: int = Field(ge=1)
    final: bool = False
    """It is the job's result."""


class AdapterRemoved(Contract):
    """Retention removed old adapter versions; their names are never used again."""

    type: Literal["adapter_removed"] = "adapter_removed"
    adapter_versions: list[int]


class ControlApplied(Contract):
    """The engine goes by this revision of the tenant's wishes."""

    type: Literal["control"] = "control"
    revision: int = Field(ge=1)
    priority: int
    steps: int
    """Steps in all."""


class Notice(Contract):
    """Something the tenant should know."""

    type: Literal["notice"] = "notice"
    level: Literal["info", "warning"]
    code: str
    message: str
    hint: str = ""
    over: bool = False
    """What was said before with this code no longer holds."""


class Span(Contract):
    """A measured interval of a stage of the job on one worker."""

    type: Literal["span"] = "span"
    stage: Stage
    worker: str
    start: float
    """Seconds since the epoch."""
    end: float
    tokens: int = Field(default=0, ge=0)


Payload = Annotated[
    StatusChanged
    | StepCommitted
    | RolloutGroup
    | Evaluated
    | RewardError
    | AdapterPublished
    | AdapterRemoved
    | ControlApplied
    | Notice
    | Span,
    Field(discriminator="type"),
]


class Event(Contract):
    """One event of one job."""

    job_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    seq: int = Field(ge=1)
    time: float
    """Seconds since the epoch, when it happened."""
    payload: Payload


class EventBatch(Contract):
    """What one Celery message carries."""

    events_version: Literal[1] = 1
    events: list[Event]


def join_events(events: Iterable[str]) -> str:
    """The ``EventBatch`` of these events as JSON, each ``Event`` given as JSON: none is parsed on its way out."""
    return f'{{"events_version":{EVENTS_VERSION},"events":[{",".join(events)}]}}'
