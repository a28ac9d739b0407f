"""The learning rate of a step. Pure Python."""

from __future__ import annotations

import math

from engine.spec import TrainingSettings


def learning_rate(settings: TrainingSettings, step: int) -> float:
    """Of a step counted from 1; every update of the step has the same.

    Rises linearly from 0 at step 0 to its full value at step ``warmup_steps``, then stays or falls to 0 at step
    ``steps + 1``: the last step still moves the adapter.

    >>> settings = TrainingSettings(learning_rate=1.0, steps=4, schedule="linear")
    >>> [learning_rate(settings, step) for step in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    full_from = max(1, settings.warmup_steps)
    rate = settings.learning_rate * min(1.0, step / full_from)
    if settings.schedule == "constant" or step <= full_from:
        return rate
    progress = (step - full_from) / (settings.steps + 1 - full_from)
    if settings.schedule == "linear":
        return rate * (1 - progress)
    return rate * (1 + math.cos(math.pi * progress)) / 2
