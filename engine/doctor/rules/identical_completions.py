"""The policy says the same thing every time it is asked, and it is not the solution."""

from __future__ import annotations

from engine.doctor.history import ENOUGH_GROUPS, History
from engine.doctor.rule import Reading, Rule, lower_bound
from engine.spec import JobSpec

LEVELS = (0.5, 0.8)
"""Of all groups; solved ones never count. With short answers some wrong ones are certain too; where half of all prompts
have one fixed wrong answer, sampling explores no more."""
ENDS = 0.3


def read(history: History, spec: JobSpec) -> Reading | None:
    identical = history.pooled("identical", "groups", ENOUGH_GROUPS)
    if identical is None:
        return None
    return Reading(
        value=lower_bound(identical.hits, identical.total),
        message=f"In {identical.hits:.0f} of the last {identical.total} groups every completion was the same, token "
        "by token, without solving the prompt.",
        hint=f"Raise sampling.temperature (now {spec.sampling.temperature:g}). If the run began well, lower "
        "training.learning_rate and start from an earlier version.",
    )


RULE = Rule("identical_completions", LEVELS, ENDS, read)
