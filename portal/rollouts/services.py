"""Writes of rollouts: only ever from a job's events, in order, under the job's lock."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from portal.jobs.models import Job, JobEvent
from portal.rollouts.models import Episode, RolloutGroup

BATCH = 500
"""Rows of one INSERT."""
EPISODE_FIELDS = (
    "completion",
    "reward",
    "parts",
    "reason",
    "error",
    "advantage",
    "tokens",
    "truncated",
    "adapter_version",
)


def digest_prompt(prompt: str, answer: str) -> str:
    """Names a prompt with its answer, whatever the job and the line of the dataset."""
    return hashlib.sha256(f"{prompt}\0{answer}".encode()).hexdigest()[:32]


def record_groups(*, job: Job, events: Sequence[JobEvent]) -> None:
    """Apply ``rollout`` events, each once."""
    groups = RolloutGroup.objects.bulk_create([_to_group(job, event) for event in events], batch_size=BATCH)
    Episode.objects.bulk_create(
        [
            Episode(group=group, position=position, **{name: episode[name] for name in EPISODE_FIELDS})
            for group, event in zip(groups, events, strict=True)
            for position, episode in enumerate(event.payload["episodes"], start=1)
        ],
        batch_size=BATCH,
    )


def _to_group(job: Job, event: JobEvent) -> RolloutGroup:
    payload: dict[str, Any] = event.payload
    episodes = payload["episodes"]
    return RolloutGroup(
        job=job,
        seq=event.seq,
        time=event.time,
        step=payload["step"],
        row=payload["row"],
        prompt=payload["prompt"],
        answer=payload["answer"],
        prompt_digest=digest_prompt(payload["prompt"], payload["answer"]),
        size=len(episodes),
        reward_mean=fmean(episode["reward"] for episode in episodes) if episodes else None,
        errors=sum(episode["error"] for episode in episodes),
    )


def forget_rollouts(*, job: Job) -> None:
    """Before they are made again from the events."""
    RolloutGroup.objects.filter(job=job).delete()
