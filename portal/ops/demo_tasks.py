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

    def jsonl(self) -> bytes:
        """The dataset as it would be uploaded."""
        return "".join(json.dumps(row) + "\n" for row in self.rows).encode()


STEPS = 20


def _settings(seed: int, max_tokens: int) -> dict[str, Any]:
    return {
        "sampling": {"max_tokens": max_tokens},
        "training": {"steps": STEPS, "prompts_per_step": 8, "group_size": 8, "learning_rate": 3e-4},
        "lora": {"rank": 16, "alpha": 32},
        "evaluation": {"max_rows": 48},
        "seed": seed,
    }


def _split(rows: list[dict[str, Any]], held_out: int, rng: random.Random) -> list[dict[str, Any]]:
    rng.shuffle(rows)
    return [{**row, "split": "held_out" if index < held_out else "train"} for index, row in enumerate(rows)]


def sums(seed: int) -> DemoTask:
    """Sums of two numbers, answered with the number alone."""
    rng = random.Random(f"sums/{seed}")
    pairs = [(a, b) for a in range(2, 20) for b in range(2, 10)]
    rows = [{"prompt": f"What is {a}+{b}? Answer with just the number.", "answer": str(a + b)} for a, b in pairs]
    return DemoTask(
        tenant="Abacus Labs",
        slug="abacus",
        user="ada",
        dataset="Sums",
        rows=_split(rows, 48, rng),
        reward="Right number, nothing else",
        reward_spec={
            "grader": {
                "type": "mix",
                "parts": [
                    {"name": "exact", "weight": 0.7, "grader": {"type": "exact_match"}},
                    {"name": "number", "weight": 0.3, "grader": {"type": "numeric"}},
                ],
            }
        },
        job="Sums",
        settings=_settings(seed, 16),
    )


FIRST_NAMES = (
    "Anna Ben Carla David Emma Felix Grace Henry Ida Jack Karen Leo Maria Noah Olga Paul Rosa Sam Tina Victor".split()
)
CITIES = "Paris London Berlin Madrid Rome Vienna Oslo Lisbon Prague Dublin Athens Warsaw Cairo Tokyo Lima Delhi".split()


def records(seed: int) -> DemoTask:
    """A sentence turned into JSON with two fields."""
    rng = random.Random(f"records/{seed}")
    pairs = rng.sample([(name, city) for name in FIRST_NAMES for city in CITIES], 200)
    rows = [
        {
            "prompt": f"{name} lives in {city}. Give the name and the city as JSON.",
            "answer": json.dumps({"name": name, "city": city}),
        }
        for name, city in pairs
    ]
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "city": {"type": "string"}},
        "required": ["name", "city"],
        "additionalProperties": False,
    }
    return DemoTask(
        tenant="Babel Records",
        slug="babel",
        user="bob",
        dataset="People and cities",
        rows=_split(rows, 48, rng),
        reward="Valid JSON with the right values",
        reward_spec={
            "grader": {
                "type": "mix",
                "parts": [
                    {"name": "exact", "weight": 0.5, "grader": {"type": "exact_match"}},
                    {"name": "schema", "weight": 0.5, "grader": {"type": "json_schema", "json_schema": schema}},
                ],
            }
        },
        job="Records",
        settings=_settings(seed, 32),
    )


def demo_tasks(seed: int) -> list[DemoTask]:
    """Both tenants' tasks."""
    return [sums(seed), records(seed)]
