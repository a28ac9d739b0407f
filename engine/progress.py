"""How far a job is: what the ledger keeps of it with each report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.spec import Limits
from engine.types import Commit


@dataclass
class Progress:
    """What of a job has been reported already, so that a restart reports nothing twice and forgets nothing."""

    step: int = 0
    """Last step whose events are in the outbox."""
    published: int = -1
    """Last adapter version reported as published."""
    evaluated: list[str] = field(default_factory=list)
    """Policies evaluated: ``base`` or an adapter version as a string."""
    history: dict[str, Any] = field(default_factory=dict)
    """State of the ``EvaluationHistory``."""
    doctor: dict[str, Any] = field(default_factory=dict)
    """State of the ``Doctor``."""
    reward_errors: dict[str, Any] = field(default_factory=dict)
    """State of the ``RewardErrors``."""
    ran_seconds: float = 0.0
    """Wall-clock time the job has run, pauses and restarts left out."""
    tokens_sampled: int = 0
    tokens_trained: int = 0
    accelerator_seconds: float = 0.0

    def count(self, commit: Commit, metrics: dict[str, float], accelerator_seconds: float) -> None:
        """A commit is about to be reported: count what it took (version 0 took nothing)."""
        self.step = self.published = commit.step
        self.tokens_sampled += int(metrics.get("tokens_sampled", 0))
        self.tokens_trained += int(metrics.get("tokens_trained", 0))
        self.accelerator_seconds += accelerator_seconds

    def reached(self, limits: Limits) -> str:
        """Which limit is reached, in words; empty where none is."""
        for limit, used, what in (
            (limits.max_tokens_sampled, self.tokens_sampled, "sampled tokens"),
            (limits.max_tokens_trained, self.tokens_trained, "trained tokens"),
            (limits.max_accelerator_seconds, self.accelerator_seconds, "accelerator-seconds"),
        ):
            if limit is not None and used >= limit:
                return f"The limit of {limit:g} {what} is reached"
        return ""
