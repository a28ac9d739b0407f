"""The policy has become certain before the task is solved: it no longer explores, so it no longer learns.

"The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (arXiv 2505.22617).
"""

from __future__ import annotations

from engine.doctor.history import History
from engine.doctor.rule import Reading, Rule
from engine.spec import JobSpec

COLLAPSED = 0.05
"""Nats per token: about 1 token in 100 is drawn other than the likeliest. Healthy runs settle above."""
FALL = 8.0
"""And so many times less than at the start: a base that is certain by nature has not collapsed."""
SOLVED_REWARD = 0.8
"""A policy that scores so well may be certain."""
LEVELS = (1.0, 5.0)
"""How many times below the threshold."""
ENDS = 0.5


def read(history: History, spec: JobSpec) -> Reading | None:
    entropy, start = history.median("entropy", 5, at_least=5), history.start_entropy
    reward, best = history.smoothed("reward"), history.settled
    if entropy is None or start is None or best is None or reward is None or reward >= SOLVED_REWARD:
        return None
    return Reading(
        value=min(COLLAPSED, start / FALL) / max(entropy, 1e-9),
        message=f"The policy's entropy is {entropy:.3g} nats per token; it started at {start:.3g}. "
        f"The training reward is {reward:.2f}.",
        hint=f"Raise training.clip_high (now {spec.training.clip_high:g}) or sampling.temperature, lower "
        "training.learning_rate, and start from an earlier version.",
    )


RULE = Rule("entropy_collapse", LEVELS, ENDS, read)
