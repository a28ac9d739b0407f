"""All completions of a prompt score the same, so nothing tells a better one from a worse one."""

from __future__ import annotations

from engine.doctor.history import ENOUGH_GROUPS, History
from engine.doctor.rule import Reading, Rule, lower_bound
from engine.spec import JobSpec

LEVELS = (0.8,)
"""Of all groups. Half of the groups without signal is common in healthy runs, on hard data and near the end; with four
in five the update is the noise of the few that are left."""
ENDS = 0.6
SOLVED_SHARE = 0.5
"""From so much of the silence on it is success rather than sickness."""


def read(history: History, spec: JobSpec) -> Reading | None:
    silent = history.pooled("silent", "groups", ENOUGH_GROUPS)
    if silent is None:
        return None
    solved = history.pooled("solved", "groups", ENOUGH_GROUPS)
    right = min(solved.hits, silent.hits) if solved else 0.0
    success = right >= SOLVED_SHARE * silent.hits
    return Reading(
        value=lower_bound(silent.hits, silent.total),
        message=f"{silent.hits:.0f} of the last {silent.total} groups taught nothing because all their completions "
        f"scored the same: {right:.0f} were solved by every completion, {silent.hits - right:.0f} were not.",
        hint=(
            "Most prompts are solved: stop here, or go on with harder ones."
            if success
            else "Make the task easier, give partial credit with a weighted mix, or raise training.group_size "
            f"(now {spec.training.group_size}) so that the rare good completion is drawn."
        ),
        level="info" if success else "warning",
    )


RULE = Rule("no_learning_signal", LEVELS, ENDS, read)
