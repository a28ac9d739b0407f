"""What a rule is, and the statistics rules share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.doctor.history import History
from engine.spec import JobSpec


@dataclass(frozen=True)
class Reading:
    """What a rule measured."""

    value: float
    """The higher the sicker, on the rule's own scale."""
    message: str
    """The finding with its numbers, a sentence in plain words; also right where the value is low."""
    hint: str = ""
    """What to try."""
    level: Literal["info", "warning"] = "warning"


@dataclass(frozen=True)
class Rule:
    """One kind of sickness."""

    code: str
    """Stable: portal and tenants refer to it."""
    levels: tuple[float, ...]
    """Ascending. From the first on the run is sick; each further one is markedly worse and said again."""
    ends: float
    """Below it the finding is over. Lower than ``levels[0]``, so that a value at the border is not news each step."""
    read: Callable[[History, JobSpec], Reading | None]
    """None where there is not enough to tell; then nothing changes."""

    def level_of(self, value: float) -> int:
        """0: not sick; n: the n-th level is reached."""
        return sum(value >= level for level in self.levels)


def lower_bound(count: float, total: float, z: float = 2.0) -> float:
    """The share that ``count`` of ``total`` shows at the least, ``z`` standard errors down (Wilson 1927).

    So a threshold on a share needs no minimum number of samples: few of them show little.

    >>> round(lower_bound(4, 4), 2), round(lower_bound(96, 96), 2)
    (0.5, 0.96)
    """
    if total <= 0:
        return 0.0
    share = count / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, (middle - spread) / (1 + z * z / total))
