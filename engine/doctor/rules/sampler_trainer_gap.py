"""Sampler and trainer disagree about the probability of the very tokens that were sampled."""

from __future__ import annotations

from engine.doctor.history import History
from engine.doctor.rule import Reading, Rule
from engine.spec import JobSpec

LEVELS = (0.1, 0.3, 1.0)
"""Mean absolute difference in nats per token. Kernels that differ in 16 bits give 0.005 to 0.05 (single tokens far
more); from 0.1 on the importance weights are noise, and another adapter's tokens give 0.3 and more."""
ENDS = 0.05


def read(history: History, spec: JobSpec) -> Reading | None:
    gap = history.median("gap", 5)
    if gap is None:
        return None
    return Reading(
        value=gap,
        message=f"Sampler and trainer disagree by {gap:.3g} nats per token on what was sampled.",
        hint="Lower max_staleness and training.learning_rate if they are high; else ask the operator to check that "
        "both run the same base model in the same number format.",
    )


RULE = Rule("sampler_trainer_gap", LEVELS, ENDS, read)
