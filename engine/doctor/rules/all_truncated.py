"""Completions hit the token limit before the model ends its turn."""

from __future__ import annotations

from engine.doctor.history import ENOUGH_EPISODES, History
from engine.doctor.rule import Reading, Rule, lower_bound
from engine.spec import JobSpec

LEVELS = (0.75, 0.9)
"""Of all episodes. Up to about half are cut in healthy runs that learn to be brief; when most are, the reward judges
fragments and the end of a turn is never trained."""
ENDS = 0.5


def read(history: History, spec: JobSpec) -> Reading | None:
    truncated = history.pooled("truncated", "episodes", ENOUGH_EPISODES)
    if truncated is None:
        return None
    return Reading(
        value=lower_bound(truncated.hits, truncated.total),
        message=f"{truncated.share:.0%} of the last {truncated.total} completions were cut off at the limit of "
        f"{spec.sampling.max_tokens} tokens.",
        hint="Raise sampling.max_tokens, ask for brief answers in the system prompt, or reward brevity in a mix.",
    )


RULE = Rule("all_truncated", LEVELS, ENDS, read)
