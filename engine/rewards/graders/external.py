"""Scores that others give."""

from __future__ import annotations

from engine.rewards.graders.source import Source
from engine.spec import EnvironmentReward, ReasoningGymScore
from engine.types import Score

ENVIRONMENT_PARTS = "environment_parts"
"""Key of a row's metadata under which graders find the reward parts the environment gave this episode."""


def reasoning_gym(grader: ReasoningGymScore, source: Source) -> Score:
    from engine.rewards.reasoning_gym import score  # an optional package that takes seconds to import

    value = score(grader, source.sample.completion, source.sample.row)
    return Score(min(max(value, 0.0), 1.0))


def environment(grader: EnvironmentReward, source: Source) -> Score:
    parts = source.sample.row.metadata.get(ENVIRONMENT_PARTS) or {}
    if grader.part not in parts:
        given = f"it gave {', '.join(parts)}" if parts else "it gave none"
        return Score(0.0, reason=f"the environment gave no part {grader.part} in this episode; {given}")
    value = (parts[grader.part] - grader.low) / (grader.high - grader.low)
    return Score(min(max(value, 0.0), 1.0))
