"""Batches for part C, as plain data: what is trained is the same for every side. Pure Python."""

from __future__ import annotations

import random
from typing import Any


def make_batch(
    *, vocabulary: int, groups: int, group: int, prompt: int, completion: int, seed: int = 0
) -> list[dict[str, Any]]:
    """Groups of ``prompt`` tokens and ``group`` completions of a quarter to all of ``completion`` tokens.

    Returns: ``[{"prompt": ids, "episodes": [{"ids": ids, "logprobs": [...], "advantage": a}, ...]}, ...]``
    """
    rng = random.Random(seed)
    made = []
    for _ in range(groups):
        advantages = [rng.gauss(0, 1) for _ in range(group)]
        mean = sum(advantages) / group
        episodes = []
        for advantage in advantages:
            length = rng.randint(max(1, completion // 4), completion)
            episodes.append(
                {
                    "ids": [rng.randrange(2, vocabulary) for _ in range(length)],
                    "logprobs": [-rng.uniform(1, 6) for _ in range(length)],
                    "advantage": advantage - mean,
                }
            )
        made.append({"prompt": [rng.randrange(2, vocabulary) for _ in range(prompt)], "episodes": episodes})
    return made


def rows_of(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The batch flat: an episode with its prompt a row."""
    return [{"prompt": group["prompt"], **episode} for group in batch for episode in group["episodes"]]


def count_tokens(batch: list[dict[str, Any]]) -> int:
    """Of completions: what is trained."""
    return sum(len(row["ids"]) for row in rows_of(batch))
