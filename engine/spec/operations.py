"""Operating the engine as a whole: what the operator wants of it, and how it says it is.

Invariants: of the operator's wishes the highest revision wins, and it outlives restarts; a report is best effort and
carries no history: the newest replaces all before it, one that is lost is made up for by the next.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.spec.contract import Contract

# Celery: a task on the engine's queue, and the one on the queue ``events`` that reports.
DRAIN_ENGINE = "engine.drain"  # (control: DrainControl as JSON). The highest revision wins.
ENGINE_REPORT = "portal.engine_report"  # (report: EngineReport as JSON). The newest wins.

REPORT_SECONDS = 5.0
"""The engine reports so often."""


class DrainControl(Contract):
    """Whether the engine takes work. While it is drained every job is paused after its last committed step, and new
    ones wait; afterwards all go on by themselves, but for those their tenants paused."""

    revision: int = Field(ge=1)
    """Counts the operator's changes; the engine goes by the highest it has seen."""
    draining: bool
    reason: str = Field(default="", max_length=300)
    """Why, for the tenants whose jobs wait; without full stop."""


class WorkerState(Contract):
    """One rollout worker."""

    name: str
    state: Literal["starting", "serving"]
    node: str = ""
    kv_capacity_tokens: int = Field(default=0, ge=0)
    """Tokens its KV cache holds; 0 before it serves."""
    requests: int = Field(default=0, ge=0)
    """In flight."""
    trouble: str = ""
    """Why it was started anew last, or does not start."""


class TenantShare(Contract):
    """What a tenant got of a shared stage in the last minutes, against what its weight would give it."""

    tenant_id: str
    weight: float
    used: float = Field(ge=0)
    """Tokens of the rollout, or seconds of the trainer, older ones counted less: half after five minutes."""
    waiting: int = Field(default=0, ge=0)
    """Its requests that wait for their turn."""


class PoolState(Contract):
    """What serves one base model."""

    base_model: str
    state: Literal["starting", "running", "failed"]
    trouble: str = ""
    """Why it failed; the next job that needs it tries again."""
    wanted_rollout_workers: int = Field(ge=1)
    rollout_workers: list[WorkerState] = Field(default_factory=list)
    waiting_for_rollout: int = Field(default=0, ge=0)
    """Requests that wait for admission."""
    waiting_for_trainer: int = Field(default=0, ge=0)
    """Pieces of work that wait for the lane."""
    lane_busy: bool = False
    """The trainer is at work."""
    kv_budget_tokens: int = Field(default=0, ge=0)
    """Of all rollout workers together."""
    kv_granted_tokens: int = Field(default=0, ge=0)
    """Claimed by the requests that were admitted."""
    adapters: int = Field(default=0, ge=0)
    """Adapter versions that requests may name."""
    adapter_slots: int = Field(default=0, ge=0)
    """Adapters one worker's batch may mix; more are served by reloading."""
    rollout_shares: list[TenantShare] = Field(default_factory=list)
    trainer_shares: list[TenantShare] = Field(default_factory=list)


class NodeState(Contract):
    """One machine of the Ray cluster."""

    name: str
    alive: bool
    cpus: float = 0
    gpus: float = 0
    memory_bytes: int = Field(default=0, ge=0)


class EngineReport(Contract):
    """How the engine is, for the operator."""

    time: float
    """Seconds since the epoch, when it was made."""
    started: float
    """Seconds since the epoch, when the controller came up."""
    jobs: dict[str, int] = Field(default_factory=dict)
    """Jobs that have not ended, by state."""
    trials: int = Field(default=0, ge=0)
    """Reward trials that have not ended."""
    unacknowledged_events: int = Field(default=0, ge=0)
    """Events the portal has not said to have stored."""
    drain: DrainControl | None = None
    """The wish it goes by; None: nothing was said."""
    pool_revisions: dict[str, int] = Field(default_factory=dict)
    """Revision of the ``PoolControl`` it goes by, by base model."""
    pools: list[PoolState] = Field(default_factory=list)
    """Those that were needed since the controller came up."""
    nodes: list[NodeState] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    """Of the software it runs, by package."""
