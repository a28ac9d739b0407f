"""The policy moves too far within one batch: its updates are cut off or rest on weights that mean nothing."""

from __future__ import annotations

from engine.doctor.history import History
from engine.doctor.rule import Reading, Rule
from engine.spec import JobSpec

RATIO_OFF = 0.2
"""The mean of the policy ratio is 1 up to noise as long as updates are small; tests of other trainers allow 0.05."""
CLIPPED = 0.5
"""Of the tokens. Token-level algorithms clip below 0.05, sequence-level ones about 0.15 to 0.3."""
LEVELS = (1.0, 2.0, 4.0)
"""Times the above, whichever is further off."""
ENDS = 0.5


def read(history: History, spec: JobSpec) -> Reading | None:
    ratio, clipped = history.median("ratio", 3), history.median("clipped", 3)
    if ratio is None or clipped is None:
        return None
    return Reading(
        value=max(abs(ratio - 1) / RATIO_OFF, clipped / CLIPPED),
        message=f"Within one batch the policy moves far: the mean policy ratio is {ratio:.3g} (1 is no change) and "
        f"{clipped:.0%} of the tokens are clipped.",
        hint=f"Lower training.learning_rate (now {spec.training.learning_rate:g}), make fewer updates per batch, or "
        "use larger batches.",
    )


RULE = Rule("ratio_blow_up", LEVELS, ENDS, read)
