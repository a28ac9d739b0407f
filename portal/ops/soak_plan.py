"""What a soak does, drawn from its seed: tenants, jobs, and the instants at which they are disturbed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

ENDLESS = 100_000
"""Steps of a job that trains until the soak shortens it."""
WEIGHTS = (1.0, 1.0, 2.0, 1.0, 4.0, 1.0, 2.0, 1.0)

SHORT = {"type": "brevity", "target": 5, "limit": 120}
"""Any model's samples vary in it."""
HANGS_ON_AN_EARLY_E = {"type": "regex", "pattern": r"^(?=[\s\S]{0,7}e)(?:(?:[\s\S]?){60}){60}\x00$"}
"""Backtracks for ages where one of the completion's first eight characters is an e: in some of a group, so that the
others still give the job something to learn from."""
REWARDS: dict[str, dict[str, Any]] = {
    "quick": {"grader": SHORT},
    "mixed": {
        "grader": {
            "type": "mix",
            "parts": [
                {"name": "short", "weight": 2, "grader": SHORT},
                {"name": "number", "weight": 1, "grader": {"type": "numeric"}},
                {"name": "maths", "weight": 1, "grader": {"type": "maths"}},
            ],
        }
    },
    "hanging": {
        "grader": {
            "type": "mix",
            "parts": [
                {"name": "short", "weight": 2, "grader": SHORT},
                {"name": "pattern", "weight": 1, "grader": HANGS_ON_AN_EARLY_E},
            ],
        },
        "timeout_seconds": 0.5,
    },
}

KILLED = ("controller", "trainer", "rollout", "environment", "grader", "engine", "events", "web", "redis", "ray")
"""Kinds of processes that are killed."""
CONTROLS = ("pause", "pause", "pause", "priority", "cancel")


@dataclass(frozen=True)
class PlannedJob:
    """One job before it is made. ``steady``: it always wants more than it gets, and is neither paused nor cancelled, so
    that its tenant's share can be told."""

    name: str
    tenant: int
    reward: str
    settings: dict[str, Any]
    steady: bool
    may_be_cancelled: bool

    @property
    def endless(self) -> bool:
        return bool(self.settings["training"]["steps"] == ENDLESS)


@dataclass(frozen=True)
class Disturbance:
    """Something that happens to the installation or to a job."""

    at: float
    """Seconds after the first disturbance may happen."""
    what: str
    """One of ``KILLED`` or of ``CONTROLS``."""
    draw: float
    """In [0, 1): which of those it may happen to."""
    seconds: float
    """How long a pause lasts."""


@dataclass(frozen=True)
class Plan:
    """All of a soak."""

    seed: int
    weights: list[float]
    jobs: list[PlannedJob]
    disturbances: list[Disturbance] = field(default_factory=list)


def make_plan(seed: int, tenants: int, jobs: int, seconds: float) -> Plan:
    """The same arguments give the same plan."""
    rng = random.Random(seed)
    return Plan(
        seed=seed,
        weights=[WEIGHTS[index % len(WEIGHTS)] for index in range(tenants)],
        jobs=[_job(rng, index, tenants) for index in range(jobs)],
        disturbances=_disturbances(rng, seconds),
    )


def _job(rng: random.Random, index: int, tenants: int) -> PlannedJob:
    """A tenant's jobs are in turn: steady and endless; endless; of medium length; short."""
    turn = index // tenants
    steady = turn == 0
    reward = "quick" if steady else rng.choices(tuple(REWARDS), weights=(5, 3, 2))[0]
    medium = (5, 10) if reward == "hanging" else (15, 40)  # of which a step takes many seconds
    rank = rng.choice((1, 2, 4, 8))
    training = {
        "steps": (ENDLESS, ENDLESS, rng.randint(*medium), rng.randint(3, 12))[turn % 4],
        "prompts_per_step": rng.choice((1, 2, 3)),
        "group_size": 4,
        "learning_rate": 1e-5,  # it learns too slowly for its rewards to become equal
        "max_staleness": rng.choice((0, 0, 1, 3)),
    }
    return PlannedJob(
        name=f"soak {index}",
        tenant=index % tenants,
        reward=reward,
        settings={
            "sampling": {"max_tokens": 24 if steady else rng.choice((8, 16, 32))},
            "training": training | ({"prompts_per_step": 8, "max_staleness": 1} if steady else {}),
            "lora": {"rank": rank, "alpha": rank * rng.choice((1, 2)), "use_rslora": rng.random() < 0.25},
            "evaluation": {"every_steps": rng.choice((0, 0, 7)), "max_rows": 4},
            "limits": {"max_batches_without_signal": 1000},
            "seed": rng.randrange(2**31),
        },
        steady=steady,
        may_be_cancelled=not steady and rng.random() < 0.4,
    )


def _disturbances(rng: random.Random, seconds: float) -> list[Disturbance]:
    """About three kills and twelve controls a minute; every kind is killed before one is killed again."""
    kills = max(len(KILLED), round(seconds / 20)) if seconds else 0
    kinds = [kind for _ in range(-(-kills // len(KILLED))) for kind in rng.sample(KILLED, len(KILLED))]
    happenings = kinds[:kills] + [rng.choice(CONTROLS) for _ in range(round(seconds / 5))]
    return sorted(
        (Disturbance(rng.uniform(0, seconds), what, rng.random(), rng.expovariate(1 / 10)) for what in happenings),
        key=lambda disturbance: disturbance.at,
    )


def dataset(seed: int) -> bytes:
    """Sums to ask a model for, as JSON lines; some rows are held out."""
    rng = random.Random(f"rows/{seed}")
    rows = [
        {"prompt": f"What is {a} + {b}?", "answer": str(a + b), "split": "held_out" if (a + b) % 5 == 0 else "train"}
        for a in range(2, 10)
        for b in range(2, 10)
    ]
    rng.shuffle(rows)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
