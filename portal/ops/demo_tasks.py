"""The two tenants of the demo and what they train: arithmetic, and a text task.

Each task holds out questions that training never sees; a seed chooses the split and the wording.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DemoTask:
    """One tenant's dataset, reward and job settings."""

    tenant: str
    slug: str
    user: str
    dataset: str
    rows: list[dict[str, Any]]
    reward: str
    reward_spec: dict[str, Any]
    job: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return int(self.settings["training"]["steps"])

    def jsonl(self) -> bytes:
        """The dataset as it would be uploaded."""
        return "".join(json.dumps(row) + "\n" for row in self.rows).encode()


def _settings(seed: int) -> dict[str, Any]:
    return {
        "sampling": {"max_tokens": 16},
        "training": {"steps": 20, "prompts_per_step": 8, "group_size": 8, "learning_rate": 3e-4},
        "lora": {"rank": 16, "alpha": 32},
        "evaluation": {"max_rows": 48},
        "seed": seed,
    }


def sums(seed: int) -> DemoTask:
    """Sums of two small numbers; the last number of the answer counts."""
    rng = random.Random(f"sums/{seed}")
    rows = [
        {"prompt": f"What is {a}+{b}? Answer with just the number.", "answer": str(a + b)}
        for a in range(1, 13)
        for b in range(1, 13)
    ]
    rng.shuffle(rows)
    return DemoTask(
        tenant="Abacus Labs",
        slug="abacus",
        user="ada",
        dataset="Sums",
        rows=[{**row, "split": "held_out" if index < 48 else "train"} for index, row in enumerate(rows)],
        reward="The right number",
        reward_spec={"grader": {"type": "numeric"}},
        job="Sums",
        settings=_settings(seed),
    )


NAMES = "Anna, Ben, Carla, David, Emma, Felix, Grace, Henry, Ida, Jack, Karen, Leo, Maria, Noah, Olga, Paul".split(", ")
CITIES = (
    "Paris, London, Berlin, Madrid, Rome, Vienna, Oslo, Lisbon, Prague, Dublin, Athens, Warsaw, Cairo, Tokyo, Lima, "
    "Delhi, Boston, Chicago, Dallas, Denver, Havana, Sydney, Mumbai, Seoul, Moscow, Zurich, Geneva, Milan, Naples, "
    "Venice, Munich, Hamburg, Lyon, Porto, Seville, Brussels, Helsinki, Stockholm, Copenhagen, Budapest"
).split(", ")
SENTENCES = (
    "{name} moved to {city} last year. Which city is named? Answer with one word.",
    "{name} has an aunt in {city}. Which city is named? Answer with one word.",
    "The train that {name} took stops in {city}. Which city is named? Answer with one word.",
)


def cities(seed: int) -> DemoTask:
    """The city a sentence names, answered with that word alone. No held-out city occurs in training."""
    rng = random.Random(f"cities/{seed}")
    rows = [
        {"prompt": rng.choice(SENTENCES).format(name=rng.choice(NAMES), city=city), "answer": city}
        for city in CITIES
        for _ in range(4)
    ]
    held_out = set(rng.sample(CITIES, 10))
    rows = [{**row, "split": "held_out" if row["answer"] in held_out else "train"} for row in rows]
    rng.shuffle(rows)
    named = {"type": "regex", "pattern": r"\b(" + "|".join(CITIES) + r")\b", "group_equals_answer": True}
    parts = [
        {"name": "exact", "weight": 0.6, "grader": {"type": "exact_match"}},
        {"name": "named", "weight": 0.3, "grader": named},
        {"name": "brevity", "weight": 0.1, "grader": {"type": "brevity", "target": 12, "limit": 60}},
    ]
    return DemoTask(
        tenant="Babel Maps",
        slug="babel",
        user="bob",
        dataset="Cities in sentences",
        rows=rows,
        reward="The city, nothing else",
        reward_spec={"grader": {"type": "mix", "parts": parts}},
        job="Cities",
        settings=_settings(seed),
    )


def demo_tasks(seed: int) -> list[DemoTask]:
    """Both tenants' tasks."""
    return [sums(seed), cities(seed)]
