"""The reward fails instead of scoring."""

from __future__ import annotations

from engine.doctor.history import ENOUGH_EPISODES, History
from engine.doctor.rule import Reading, Rule, lower_bound
from engine.spec import JobSpec

LEVELS = (0.05, 0.25, 0.75)
"""Of all gradings. An error scores 0 whatever the completion was worth: from one in twenty on that blurs the signal, a
quarter drowns it. The odd timeout on a busy machine stays far below."""
ENDS = 0.01
Z = 3.0
"""Wider than elsewhere: errors are rare, and a long run looks many times."""


def read(history: History, spec: JobSpec) -> Reading | None:
    # from the first batch on: a broken reward is broken at once, and every further batch is wasted
    errors = history.pooled("errors", "episodes", ENOUGH_EPISODES, at_least=1)
    if errors is None:
        return None
    said = f" The last error: {history.last_error.rstrip('.')}." if errors.hits and history.last_error else ""
    return Reading(
        value=lower_bound(errors.hits, errors.total, Z),
        message=f"The reward failed on {errors.hits:.0f} of the last {errors.total} completions, "
        f"which then score 0.{said}",
        hint="Test the reward on the completions shown. Where it runs out of time, make it faster or raise "
        f"reward.timeout_seconds (now {spec.reward.timeout_seconds:g}).",
    )


RULE = Rule("reward_errors", LEVELS, ENDS, read)
