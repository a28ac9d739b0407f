"""Completions grow and grow without earning more."""

from __future__ import annotations

from engine.doctor.history import History
from engine.doctor.rule import Reading, Rule
from engine.spec import JobSpec

FLOOR = 24.0
"""Tokens: below, several times the length is a few words more."""
LEVELS = (2.5, 5.0, 10.0)
"""Times the length (or ``FLOOR``) at which the training reward was best. Reasoning that grows and pays is healthy, and
moves that mark along; more for nothing is padding, repetition, or a reward that likes length."""
ENDS = 1.75


def read(history: History, spec: JobSpec) -> Reading | None:
    tokens, best = history.smoothed("tokens"), history.settled
    if tokens is None or best is None or best.tokens is None:
        return None
    return Reading(
        value=tokens / max(best.tokens, FLOOR),
        message=f"Completions are {tokens:.0f} tokens long on average; when the training reward was best "
        f"({best.reward:.2f}) they were {best.tokens:.0f}.",
        hint="Read the newest completions. Reward brevity in a mix, lower sampling.max_tokens "
        f"(now {spec.sampling.max_tokens}), or start from an earlier version.",
    )


RULE = Rule("lengths_running_away", LEVELS, ENDS, read)
