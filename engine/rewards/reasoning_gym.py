"""reasoning-gym's own scorers. Only for grading processes: the package is large, optional, and runs what it likes."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from engine.environments.reasoning_gym import make_dataset, row_entry
from engine.spec import DatasetRow, ReasoningGymScore

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def score(grader: ReasoningGymScore, completion: str, row: DatasetRow) -> float:
    """The dataset's score of a completion."""
    tagged = ANSWER.findall(completion)
    answer = (tagged[-1] if tagged else completion).strip()
    dataset = _dataset(grader.dataset, json.dumps(grader.config, sort_keys=True))
    return float(dataset.score_answer(answer, row_entry(row)))


@lru_cache(maxsize=32)
def _dataset(name: str, config: str) -> Any:
    return make_dataset(name, json.loads(config), size=1, seed=0)
