"""Specs and batches for the trainer's tests. Everything follows from the arguments."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from engine.spec import (
    BaseModelSpec,
    DatasetRef,
    ExactMatch,
    JobSpec,
    LoraSettings,
    RewardSpec,
    SamplingSettings,
    TrainingSettings,
)
from engine.types import Group, Score, TrainBatch, Trajectory

VOCAB = 300
"""Ids below this exist in the tiny model."""


def make_spec(
    job_id: str = "a" * 32,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    lora: dict[str, Any] | None = None,
    **training: Any,
) -> JobSpec:
    return JobSpec(
        job_id=job_id,
        tenant_id="tenant",
        base_model=BaseModelSpec(id="tiny", source="local", location="/models/tiny", context_length=256),
        dataset=DatasetRef(path="/data", sha256="0" * 64, train_rows=8, held_out_rows=0),
        reward=RewardSpec(grader=ExactMatch()),
        sampling=SamplingSettings(temperature=temperature, max_tokens=32),
        training=TrainingSettings(**{"learning_rate": 1e-2, **training}),
        lora=LoraSettings(**(lora or {"rank": 4, "alpha": 8})),
        seed=seed,
    )


def make_trajectory(rng: random.Random, length: int, *, environment_tokens: bool = False) -> Trajectory:
    """Random ids; with ``environment_tokens`` a stretch in the middle, and perhaps the end, is not the model's."""
    mask = [True] * length
    if environment_tokens and length > 4:
        start = rng.randrange(1, length - 3)
        mask[start : start + 2] = [False, False]
        mask[-1] = rng.random() < 0.5
    return Trajectory(
        token_ids=[rng.randrange(VOCAB) for _ in range(length)],
        loss_mask=mask,
        logprobs=[-rng.uniform(1, 6) if sampled else 0.0 for sampled in mask],
        adapter_version=0,
        text="",
        truncated=False,
        score=Score(0.0),
    )


def make_batch(
    step: int,
    *,
    job_id: str = "a" * 32,
    seed: int | None = None,
    groups: int = 3,
    group_size: int = 4,
    environment_tokens: bool = False,
) -> TrainBatch:
    """Prompts and completions of random length; in each group one trajectory has advantage 0."""
    rng = random.Random(step if seed is None else seed)
    made = [
        Group(
            row=row,
            prompt_ids=[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))],
            prompt_text="",
            answer="",
            trajectories=[
                make_trajectory(rng, rng.randrange(1, 12), environment_tokens=environment_tokens)
                for _ in range(group_size)
            ],
        )
        for row in range(groups)
    ]
    advantages = [[0.0, *(rng.gauss(0, 1) for _ in range(group_size - 1))] for _ in made]
    return TrainBatch(job_id, step, step * groups, made, advantages, probe_ids=[5, 17, 40, 8, 99, 3])


def with_trajectory(batch: TrainBatch, **changes: Any) -> TrainBatch:
    """The batch with the second trajectory of its first group changed."""
    first = batch.groups[0]
    trajectories = list(first.trajectories)
    trajectories[1] = replace(trajectories[1], **changes)
    return replace(batch, groups=[replace(first, trajectories=trajectories), *batch.groups[1:]])
