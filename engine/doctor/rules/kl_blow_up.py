"""The policy runs away from the base without getting better."""

from __future__ import annotations

from engine.doctor.history import History
from engine.doctor.rule import Reading, Rule
from engine.spec import JobSpec

FLOOR = 0.3
"""Nats per token that any run may move: common at the end of healthy ones."""
BROKEN = 2.0
"""Unit of the absolute scale: at ``LEVELS[0]`` of it (10 nats per token) text is broken whatever the reward says."""
LEVELS = (5.0, 25.0)
"""Times the KL (or ``FLOOR``) at which the training reward was best. A policy that keeps improving may go far from the
base, so only what was gained nothing by counts."""
ENDS = 2.5


def read(history: History, spec: JobSpec) -> Reading | None:
    kl, best = history.median("kl", 5), history.best
    if kl is None or best is None:
        return None
    usual = max(best.kl or 0.0, FLOOR)
    return Reading(
        value=max(kl / usual if history.settled else 0.0, kl / BROKEN),
        message=f"The policy is {kl:.3g} nats per token away from the base (KL divergence); when its training reward "
        f"was best ({best.reward:.2f}) it was {best.kl or 0:.3g}.",
        hint=f"Lower training.learning_rate (now {spec.training.learning_rate:g}), raise the KL penalty, and start "
        "from an earlier version.",
    )


RULE = Rule("kl_blow_up", LEVELS, ENDS, read)
