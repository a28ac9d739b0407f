"""Reward trials: a reward tested on a few completions before a job trains on it.

Invariants: a trial is bounded (rows, completions, tokens, wall time) and changes nothing: no adapter, no job, no
dataset. It is idempotent by ``trial_id``: asked for again it is not run again, its last report is sent again.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from engine.spec.contract import Contract
from engine.spec.data import BaseModelSpec, DatasetRow
from engine.spec.rewards import RewardSpec

# Celery: tasks on the engine's queue, and the one on the queue ``events`` that answers them.
TRY_REWARD = "engine.try_reward"  # (trial: RewardTrialSpec as JSON). Idempotent by trial_id.
CANCEL_TRIAL = "engine.cancel_trial"  # (trial_id: str). Unknown and finished trials are left alone.
REWARD_TRIED = "portal.reward_tried"  # (report: TrialReport as JSON). The highest sequence number wins.

MAX_TRIAL_ROWS = 50
MAX_TRIAL_SAMPLES = 8
MAX_TRIAL_TOKENS = 2048
MAX_COMPLETION_CHARACTERS = 100_000
FINISHED_TRIALS: frozenset[str] = frozenset({"done", "failed", "cancelled"})


class TrialCase(Contract):
    """One row, and the completions of it that are scored."""

    row: DatasetRow
    number: int | None = Field(default=None, ge=0)
    """Line of the dataset file, counted from 0, where the row comes from a dataset."""
    completions: list[str] = Field(default_factory=list, max_length=MAX_TRIAL_SAMPLES)
    """Given completions; none: they are sampled."""


class TrialSampling(Contract):
    """How fresh completions are drawn, all from the base model without an adapter."""

    base_model: BaseModelSpec
    samples: int = Field(default=4, ge=1, le=MAX_TRIAL_SAMPLES)
    """Completions of each row."""
    max_tokens: int = Field(default=128, ge=1, le=MAX_TRIAL_TOKENS)
    temperature: float = Field(default=1.0, ge=0, le=2)
    """0 means greedy: all completions of a row are then the same."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    system_prompt: str = Field(default="", max_length=20_000)
    """Put before rows that have no system message, as a job's environment does."""


class RewardTrialSpec(Contract):
    """What is tried: a reward, rows, and completions given or to be sampled."""

    trial_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    tenant_id: str
    weight: float = Field(default=1.0, gt=0)
    """The tenant's share of the rollout."""
    reward: RewardSpec
    cases: list[TrialCase] = Field(min_length=1, max_length=MAX_TRIAL_ROWS)
    sampling: TrialSampling | None = None
    """Needed where a row has no completions, or where the base model is the judge."""
    limit_seconds: float = Field(default=300.0, gt=0, le=900)
    """Wall clock for sampling and grading, from when the base model is up."""

    ask_until: float | None = None
    """Seconds since the epoch; later nobody waits for the answer, and a trial not begun yet is not run."""

    @model_validator(mode="after")
    def _has_completions(self) -> RewardTrialSpec:
        if self.sampling is None and not all(case.completions for case in self.cases):
            raise ValueError("without sampling every row needs completions")
        return self


class TrialScore(Contract):
    """One completion and what the reward said of it."""

    completion: str
    total: float
    parts: dict[str, float] = Field(default_factory=dict)
    reason: str = ""
    error: bool = False
    error_kind: str = ""
    details: str = ""
    """Traceback with line numbers, or what else explains an error."""
    console: str = ""
    seconds: float = 0.0
    tokens: int = Field(default=0, ge=0)
    """0 where the completion was given."""
    judge_tokens: int = Field(default=0, ge=0)
    """Tokens a model sampled as the judge of it."""
    truncated: bool = False
    """It was cut off at the token limit."""


class TrialReport(Contract):
    """How a trial stands. The last one of a trial is final and, where it is ``done``, has every score."""

    trial_id: str
    sequence: int = Field(ge=1)
    """Grows from report to report, over the engine's restarts too."""
    state: Literal["running", "done", "failed", "cancelled"]
    reason: str = ""
    """What it is doing, or why it failed, in plain words for the tenant."""
    done: int = Field(default=0, ge=0)
    """Completions scored."""
    scores: list[list[TrialScore]] = Field(default_factory=list)
    """[case][completion]; empty until the end."""
    sampled_tokens: int = Field(default=0, ge=0)
    accelerator_seconds: float = Field(default=0.0, ge=0)
