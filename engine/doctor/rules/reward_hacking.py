"""The training reward rises while held-out quality falls: the policy pleases the grader, or learns rows by heart."""

from __future__ import annotations

import math

from engine.doctor.history import History
from engine.doctor.rule import Reading, Rule
from engine.spec import JobSpec

STANDARD_ERRORS = 3.5
"""By so many the mean of the last two evaluations must be below the best such mean, which was lucky in part."""
FEWEST_ROWS = 16
"""With fewer held-out rows an evaluation is a toss of a few coins."""
SMALLEST_FALL = 0.05
"""Below, nobody would act on it."""
RISE = 0.05
"""Of the training reward meanwhile; where it fell too the run is unstable, which is another sickness."""
LEVELS = (1.0, 2.0)
"""Times the above, whichever is nearer."""
ENDS = 0.5
NAMES = {"accuracy": "accuracy", "reward_mean": "reward"}


def read(history: History, spec: JobSpec) -> Reading | None:
    readings = [reading for measure in NAMES if (reading := _read(history, spec, measure))]
    return max(readings, key=lambda reading: reading.value, default=None)


def _read(history: History, spec: JobSpec, measure: str) -> Reading | None:
    now, peak = history.newest_pair(measure), history.peaks.get(measure)
    if now is None or peak is None:
        return None
    rows = min(spec.evaluation.max_rows, spec.held_out_rows)
    if rows < FEWEST_ROWS:
        return None
    middle = min(max((now.value + peak.value) / 2, 0.0), 1.0)
    # a score in [0, 1] varies at most as a coin does; this is the difference of two means of two evaluations each
    standard_error = math.sqrt(middle * (1 - middle) / rows)
    fall = (peak.value - now.value) / max(SMALLEST_FALL, STANDARD_ERRORS * standard_error)
    rise = now.training - peak.training
    return Reading(
        value=min(fall, rise / RISE),
        message=f"Held-out {NAMES[measure]} went from {peak.value:.3f} (step {peak.step}) to {now.value:.3f} "
        f"(step {now.step}) while the training reward went from {peak.training:.3f} to {now.training:.3f}.",
        hint="Read the newest completions for what the reward pays for by mistake, and close that gap. If the rows are "
        "few, add more or stop earlier; the version of the best evaluation is the one to use.",
    )


RULE = Rule("reward_hacking", LEVELS, ENDS, read)
