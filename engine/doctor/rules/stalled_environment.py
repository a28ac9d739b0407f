"""Most of the time is spent waiting for the environment or the reward."""

from __future__ import annotations

import statistics

from engine.doctor.history import History
from engine.doctor.rule import Reading, Rule
from engine.spec import JobSpec

BATCHES = 5
SHARE = 0.7
"""Of the seconds of all stages. Where episodes overlap, the time of a batch is divided between rollout and environment,
so that nothing counts twice (``engine.environments.timing``)."""
SECONDS = 5.0
"""A batch; below, nobody waits."""
LEVELS = (1.0, 1.28)
"""Times the above, whichever is nearer: 0.9 of all seconds is markedly worse than 0.7."""
ENDS = 0.75


def read(history: History, spec: JobSpec) -> Reading | None:
    environment = history.recent("environment_seconds", BATCHES)
    stages = history.recent("all_seconds", BATCHES)
    if len(environment) < 3 or not sum(stages):
        return None
    share, seconds = sum(environment) / sum(stages), statistics.fmean(environment)
    return Reading(
        value=min(share / SHARE, seconds / SECONDS),
        message=f"{share:.0%} of the time goes into the environment and the reward: {seconds:.3g} s of "
        f"{statistics.fmean(stages):.3g} s a batch.",
        hint="Find what is slow: a tool, a remote server, or the reward (reward.timeout_seconds is "
        f"{spec.reward.timeout_seconds:g}). Lower its time limit, or make it faster.",
    )


RULE = Rule("stalled_environment", LEVELS, ENDS, read)
