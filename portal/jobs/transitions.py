"""What a job is called between the tenant's wish and the engine's word, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transition:
    """A state that only the portal knows: asked for, not yet reported."""

    name: str
    label: str
    badge: str
    """Status whose badge it wears."""
    reason: str
    next: str


CANCELLING = Transition(
    name="cancelling",
    label="Cancelling",
    badge="cancelled",
    reason="Cancelled on request; the engine is stopping it.",
    next="The adapter committed so far is kept.",
)
PAUSING = Transition(
    name="pausing",
    label="Pausing",
    badge="paused",
    reason="A pause was asked for; the engine is stopping the job.",
    next="What is being drawn is dropped; every committed step is kept.",
)
RESUMING = Transition(
    name="resuming",
    label="Resuming",
    badge="preparing",
    reason="It was asked to go on; the engine is taking it up again.",
    next="It goes on from its last committed step.",
)
