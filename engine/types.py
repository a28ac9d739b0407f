"""What the engine's stages hand to each other. Plain data: no torch, no Ray, no vLLM.

Invariants: every sampled token carries the policy that produced it (a rollout request without one is refused), and the
token ids that are trained are exactly the ids that were sampled: text is for people and graders only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.spec import DatasetRow, Turn, adapter_name


@dataclass(frozen=True)
class AdapterRef:
    """One adapter version as the rollout knows it."""

    job_id: str
    version: int
    lora_id: int
    """Integer id inside vLLM: positive, unique in the installation, never used twice, not even after a restart."""
    path: str
    """Folder with adapter_model.safetensors and adapter_config.json."""
    sha256: str
    """Digest of adapter_model.safetensors."""

    @property
    def name(self) -> str:
        return adapter_name(self.job_id, self.version)


@dataclass(frozen=True)
class BasePolicy:
    """The frozen base without an adapter, named explicitly."""

    name: str = "base"


BASE = BasePolicy()
Policy = AdapterRef | BasePolicy


@dataclass(frozen=True)
class RolloutRequest:
    """Draw ``n`` completions of one prompt from one policy."""

    policy: Policy
    prompt_ids: list[int]
    n: int
    max_tokens: int
    temperature: float
    """0 means greedy."""
    seed: int
    job_id: str = ""
    """The job it is drawn for: whose share it counts to."""
    began: float = field(default_factory=time.time, compare=False)
    """When the group it is part of began, in epoch seconds: what began earlier is decoded first, so that batches become
    complete one after another, and not all at the end."""


@dataclass(frozen=True)
class Completion:
    """One sampled completion."""

    token_ids: list[int]
    """As sampled, the end-of-turn token included where the model ended its turn."""
    logprobs: list[float]
    """Log-probability of each sampled token under the policy at the request's temperature. Same length."""
    text: str
    """Decoded, special tokens left out."""
    finish_reason: Literal["stop", "length"]
    policy: str
    """Name of the policy that produced it."""
    worker: str = ""
    """Name of the rollout worker that drew it."""


ErrorKind = Literal[
    "",
    "syntax",
    "missing_function",
    "exception",
    "wrong_return",
    "not_finite",
    "out_of_range",
    "timed_out",
    "out_of_memory",
    "killed",
    "too_much_output",
    "refused",
    "environment",
    "grader",
]
"""What kind of failure an error score is. ``refused``: this machine has no sandbox for tenant Python; ``grader``: the
grading itself could not be done, e.g. the row's answer is unusable."""


@dataclass(frozen=True)
class Sample:
    """What is graded: one finished episode, as graders see it."""

    row: DatasetRow
    completion: str
    """The model's last reply."""
    turns: Sequence[Turn] = ()
    """All that was said after the row's messages, the model's replies and the environment's messages in order; empty
    means one reply, the completion."""


@dataclass(frozen=True)
class Score:
    """What a grader says of one sample."""

    total: float
    """In [0, 1], finite. 0 where ``error``."""
    parts: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    error: bool = False
    seconds: float = 0.0
    error_kind: ErrorKind = ""
    """Set where ``error`` and the kind is known."""
    details: str = ""
    """For the reward's author: traceback with line numbers, or what else explains an error. Shortened."""
    console: str = ""
    """What the reward printed. Shortened."""
    judge_tokens: int = 0
    """Tokens a model sampled as the judge."""


@dataclass(frozen=True)
class Trajectory:
    """One finished episode."""

    token_ids: list[int]
    """Everything after the prompt."""
    loss_mask: list[bool]
    """True for tokens the model sampled (its end-of-turn token included), False for the environment's."""
    logprobs: list[float]
    """Of the sampler; 0.0 where not sampled."""
    adapter_version: int | None
    """None: the base."""
    text: str
    """For people: all that was said after the prompt."""
    truncated: bool
    """A limit ended it: of tokens before the model ended its turn, or of turns or tokens of an episode."""
    score: Score


@dataclass(frozen=True)
class Group:
    """G episodes that answer one prompt."""

    row: int
    prompt_ids: list[int]
    prompt_text: str
    """The last user message, for people."""
    answer: str
    trajectories: list[Trajectory]


PROBE_TOKENS = 16
"""At most so many tokens are compared between trainer and rollout after a publish. An episode's come first: on them
adapters differ, on the chat template's header hardly. More would prove no more and keep both from their work."""


@dataclass(frozen=True)
class TrainBatch:
    """What one optimizer step of one job trains on."""

    job_id: str
    step: int
    """The step this batch makes, counted from 1; the commit becomes adapter version ``step``."""
    cursor: int
    """The job's data cursor after this batch (prompts drawn so far); committed with the step."""
    groups: list[Group]
    advantages: list[list[float]]
    """[group][trajectory]"""
    probe_ids: list[int]
    """Token ids whose log-probabilities the trainer reports under the new version; the rollout must agree."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What is known of the batch before it is trained; committed and returned with the trainer's own metrics."""


@dataclass(frozen=True)
class Commit:
    """One committed adapter version in the store."""

    job_id: str
    version: int
    """Equal to ``step``; 0 is the untrained adapter."""
    step: int
    cursor: int
    path: str
    sha256: str
    """Of adapter_model.safetensors."""
    size_bytes: int
    rank: int


@dataclass(frozen=True)
class StepResult:
    """What the trainer returns for a batch. Asking again for a committed step returns the same."""

    commit: Commit
    metrics: dict[str, float]
    probe_logprobs: list[float]
    """Log-probability (temperature 1) of probe_ids[1:], each given what precedes it."""
    commit_seconds: float = field(default=0.0, compare=False)
    """Time it took to write the commit, beside other jobs' updates."""
    turn_seconds: float = field(default=0.0, compare=False)
    """How long the trainer's turn was in which the update was made, with others' where it was shared."""
