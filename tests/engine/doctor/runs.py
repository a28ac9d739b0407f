"""Runs for the doctor, drawn at random from a seed: what a batch's metrics would be, without a model.

A run is healthy unless told otherwise. Everything noisy is drawn as it would be in a real run: each completion is right
with the probability the run has reached, so small batches are as noisy as small batches are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.doctor import Doctor
from engine.events import Notice
from engine.spec import (
    BaseModelSpec,
    DatasetRef,
    EvaluationSettings,
    ExactMatch,
    JobSpec,
    RewardSpec,
    SamplingSettings,
    TrainingSettings,
)

Curve = Callable[[float], float]
"""From the share of the run that is over, 0 to 1, to a value."""


def make_spec(prompts: int = 8, group_size: int = 8, held_out: int = 64, max_tokens: int = 512) -> JobSpec:
    return JobSpec(
        job_id="d" * 32,
        tenant_id="tenant",
        base_model=BaseModelSpec(id="tiny", source="local", location="/models/tiny", context_length=4096),
        dataset=DatasetRef(path="/data", sha256="0" * 64, train_rows=100, held_out_rows=held_out),
        reward=RewardSpec(grader=ExactMatch()),
        sampling=SamplingSettings(max_tokens=max_tokens),
        training=TrainingSettings(prompts_per_step=prompts, group_size=group_size),
        evaluation=EvaluationSettings(every_steps=5),
    )


def rising(start: float, end: float, middle: float = 0.4, steepness: float = 12.0) -> Curve:
    """An S from ``start`` to ``end``; with ``start`` above ``end`` it falls."""

    def curve(t: float) -> float:
        def sigmoid(x: float) -> float:
            return 1 / (1 + math.exp(-steepness * (x - middle)))

        return start + (end - start) * (sigmoid(t) - sigmoid(0)) / (sigmoid(1) - sigmoid(0))

    return curve


def steady(value: float) -> Curve:
    return lambda t: value


@dataclass
class Run:
    """The course of a run. ``noise`` is relative."""

    spec: JobSpec
    steps: int = 60
    correct: Curve = field(default_factory=lambda: rising(0.15, 0.75))
    """Probability that a completion of a prompt of middling difficulty is right."""
    spread: float = 1.0
    """How much prompts differ in difficulty, in logits."""
    held_out: Curve | None = None
    """Probability that a held-out row is answered right; as in training where not given."""
    entropy: Curve = field(default_factory=lambda: rising(1.0, 0.25))
    kl: Curve = field(default_factory=lambda: rising(0.0, 0.15))
    ratio: Curve = field(default_factory=lambda: steady(1.0))
    clipped: Curve = field(default_factory=lambda: steady(0.02))
    gap: Curve = field(default_factory=lambda: steady(0.02))
    tokens: Curve = field(default_factory=lambda: steady(120))
    truncated: Curve = field(default_factory=lambda: rising(0.4, 0.05))
    errors: Curve = field(default_factory=lambda: steady(0.005))
    environment: Curve = field(default_factory=lambda: steady(4.0))
    noise: float = 0.25

    def metrics(self, step: int, rng: random.Random) -> dict[str, float]:
        t = step / self.steps
        groups, size = self.spec.training.prompts_per_step, self.spec.training.group_size
        episodes = groups * size
        scores, silent = [], 0
        for _ in range(groups):
            chance = _shift(self.correct(t), rng.gauss(0, self.spread))
            group = [rng.random() < chance for _ in range(size)]
            silent += len(set(group)) == 1
            scores += group
        right = sum(scores) / episodes

        def noisy(value: float) -> float:
            return value * math.exp(rng.gauss(0, self.noise))

        known = {
            "reward_mean": right,
            "accuracy": right,
            "zero_variance_groups": float(silent),
            "truncated_fraction": _drawn(self.truncated(t), episodes, rng) / episodes,
            "reward_errors": float(_drawn(self.errors(t), episodes, rng)),
            "completion_tokens_mean": self.tokens(t) * math.exp(rng.gauss(0, 1.0 / math.sqrt(episodes))),
            "rollout_seconds": noisy(10),
            "environment_seconds": noisy(self.environment(t)),
        }
        if silent < groups:
            known |= {
                "tokens_trained": 1.0,
                "entropy": noisy(self.entropy(t)),
                "kl": noisy(self.kl(t)) * (4 if rng.random() < 0.02 else 1),  # k3 has heavy tails
                "ratio_mean": self.ratio(t) + rng.gauss(0, 0.02),
                "clip_fraction": min(noisy(self.clipped(t)), 1.0),
                "logprob_gap": noisy(self.gap(t)),
                "train_seconds": noisy(8),
                "publish_seconds": noisy(0.5),
            }
        return known

    def evaluation(self, step: int, rng: random.Random) -> float:
        rows = min(self.spec.evaluation.max_rows, self.spec.dataset.held_out_rows)
        curve, difficulty = self.held_out or self.correct, random.Random(0)
        chances = [_shift(curve(step / self.steps), difficulty.gauss(0, self.spread)) for _ in range(rows)]
        return sum(rng.random() < chance for chance in chances) / rows

    def play(self, seed: int, doctor: Doctor | None = None) -> list[tuple[int, Notice]]:
        """What the doctor says, with the step it says it at."""
        doctor, rng, said = doctor or Doctor(self.spec), random.Random(seed), []
        every = self.spec.evaluation.every_steps
        for step in range(self.steps + 1):
            if step:
                metrics = self.metrics(step, rng)
                said += [(step, notice) for notice in doctor.observe_step(step, metrics, [])]
            if step % every == 0:
                accuracy = self.evaluation(step, rng)
                said += [(step, notice) for notice in doctor.observe_evaluation(step, accuracy, accuracy)]
        return said


def _shift(probability: float, logits: float) -> float:
    probability = min(max(probability, 1e-6), 1 - 1e-6)
    return 1 / (1 + math.exp(-(math.log(probability / (1 - probability)) + logits)))


def _drawn(probability: float, n: int, rng: random.Random) -> int:
    return sum(rng.random() < probability for _ in range(n))
