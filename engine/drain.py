"""Pausing, by the tenant and by the operator: what tenants are told.

While the operator drains the engine no job runs. A job its tenant paused stays paused afterwards; all others go on.
"""

from __future__ import annotations

from engine.events import StatusChanged
from engine.spec import DrainControl

AFTERWARDS = "It goes on by itself when that is over; nothing that was committed is lost."


def drain_reason(control: DrainControl | None) -> str:
    """Why no work is taken, as part of a sentence; empty where it is."""
    if control is None or not control.draining:
        return ""
    return control.reason or "the operator is at work on it"


def paused_on_request(step: int, steps: int, reason: str = "") -> StatusChanged:
    """The tenant wants the job to pause, drained or not; with ``reason`` it is the service that does, for a while."""
    if reason:
        return StatusChanged(
            status="paused",
            reason=f"{reason} Paused after step {step} of {steps}.",
            next="It goes on from there by itself once that is over.",
        )
    return StatusChanged(
        status="paused",
        reason=f"Paused on request after step {step} of {steps}.",
        next="Resume it to go on from there.",
    )


def held(reason: str, step: int, steps: int) -> StatusChanged:
    """A job that was running, or that its tenant wants to go on, waits."""
    return StatusChanged(
        status="paused",
        reason=f"The operator paused all jobs: {reason}. Step {step} of {steps} is done.",
        next=AFTERWARDS,
    )


def accepted_while_drained(reason: str) -> StatusChanged:
    """A job that was submitted meanwhile waits."""
    return StatusChanged(
        status="queued",
        reason=f"The engine has the job, and takes no new work now: {reason}.",
        next="It starts by itself when that is over.",
    )


def trial_refusal(reason: str) -> str:
    """Why a reward trial is not run; empty where it is."""
    return f"The engine takes no new work now: {reason}. Start the test again later." if reason else ""
