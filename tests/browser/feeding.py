"""A job as the engine would report it, event by event, through the portal's own ingestion."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

from engine.events import (
    AdapterPublished,
    Episode,
    Evaluated,
    Event,
    EventBatch,
    Notice,
    Payload,
    RolloutGroup,
    StatusChanged,
    StepCommitted,
)
from engine.spec import adapter_name
from portal.jobs.models import Job
from portal.jobs.services import ingest_events
from tests.portal.factories import WEIGHTS, write_adapter


class JobFeed:
    """Numbers the events of one job and hands them in."""

    def __init__(self, job: Job, *, start: float | None = None, seconds_per_step: float = 9.0) -> None:
        self.job = job
        self.seq = 0
        self.time = time.time() if start is None else start
        self.seconds_per_step = seconds_per_step
        self.random = random.Random(job.name)

    def send(self, *payloads: Payload) -> None:
        events = []
        for payload in payloads:
            self.seq += 1
            events.append(Event(job_id=self.job.pk.hex, seq=self.seq, time=self.time, payload=payload))
        ingest_events(batch=EventBatch(events=events))
        self.job.refresh_from_db()

    def status(self, name: str, reason: str, following: str = "") -> None:
        self.send(StatusChanged(status=name, reason=reason, next=following))  # type: ignore[arg-type]

    def notice(self, message: str, hint: str = "", level: str = "warning") -> None:
        self.send(Notice(level=level, code="notice", message=message, hint=hint))  # type: ignore[arg-type]

    def evaluate(self, accuracy: float, version: int | None = None) -> None:
        self.send(
            Evaluated(step=version or 0, adapter_version=version, rows=50, accuracy=accuracy, reward_mean=accuracy)
        )

    def step(self, number: int, skill: float, questions: list[tuple[str, str]]) -> None:
        """One step: its rollouts, its metrics. ``skill`` is the chance that an answer is right."""
        self.time += self.seconds_per_step
        groups = [self._group(number, skill, *self.random.choice(questions)) for _ in range(2)]
        rewards = [episode.reward for group in groups for episode in group.episodes]
        mean = skill + self.random.uniform(-0.06, 0.06)
        metrics = {
            "reward_mean": min(1.0, max(0.0, mean)),
            "reward_std": 0.4,
            "accuracy": min(1.0, max(0.0, mean - 0.05)),
            "loss": 0.01,
            "entropy": 1.6 * (1 - skill) + self.random.uniform(0.0, 0.1),
            "grad_norm": 0.4 + self.random.uniform(0, 0.5),
            "completion_tokens_mean": 40 - 24 * skill + self.random.uniform(-2, 2),
            "zero_variance_groups": float(sum(len(set(rewards[i : i + 8])) == 1 for i in (0, 8))),
            "learning_rate": 2e-4,
            "tokens_sampled": 2048.0,
        }
        self.send(*groups, StepCommitted(step=number, adapter_version=number, metrics=metrics))

    def adapter(self, version: int, *, final: bool = False) -> Path:
        """Publish a version whose files really are in the store."""
        folder = write_adapter(self.job, version)
        self.send(
            AdapterPublished(
                adapter_version=version,
                name=adapter_name(self.job.pk.hex, version),
                step=version,
                path=str(folder),
                sha256=hashlib.sha256(WEIGHTS).hexdigest(),
                size_bytes=len(WEIGHTS),
                rank=16,
                final=final,
            )
        )
        return folder

    def _group(self, number: int, skill: float, prompt: str, answer: str) -> RolloutGroup:
        episodes = [self._episode(number, self.random.random() < skill, answer) for _ in range(8)]
        mean = sum(episode.reward for episode in episodes) / len(episodes)
        episodes = [episode.model_copy(update={"advantage": episode.reward - mean}) for episode in episodes]
        return RolloutGroup(
            step=number, row=self.random.randrange(450), prompt=prompt, answer=answer, episodes=episodes
        )

    def _episode(self, number: int, right: bool, answer: str) -> Episode:
        rambling = not right and self.random.random() < 0.3
        wrong = f"Let me think. The answer is {self.random.randrange(10, 99)}."
        text = f"The answer is {answer}." if right else (wrong + " Adding the two numbers step by step," * rambling)
        short = 1.0 if len(text) < 60 else 0.4
        return Episode(
            completion=text,
            reward=(float(right) + 0.2 * short) / 1.2,
            parts={"correct": float(right), "short": short},
            reason="" if right else f"expected {answer}",
            tokens=len(text.split()) + 3,
            truncated=rambling,
            adapter_version=number - 1,
        )
