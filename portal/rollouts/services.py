"""Writes of rollouts: only ever from jobs' events, those of each in order, under the jobs' locks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from portal.bulk import insert_returning_ids, insert_rows
from portal.jobs.models import Job
from portal.jobs.stored import StoredEvent
from portal.rollouts.models import Episode, RolloutGroup

GROUP_FIELDS = (
    "job",
    "seq",
    "time",
    "step",
    "row",
    "prompt",
    "answer",
    "prompt_digest",
    "size",
    "reward_mean",
    "errors",
)
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


def record_groups(*, events: Sequence[StoredEvent]) -> None:
    """Apply ``rollout`` events of any jobs, each once."""
    if not events:
        return
    groups = insert_returning_ids(RolloutGroup, GROUP_FIELDS, [_to_group(event) for event in events])
    insert_rows(
        Episode,
        ("group", "position", *EPISODE_FIELDS),
        [
            (group, position, *[episode[name] for name in EPISODE_FIELDS])
            for group, event in zip(groups, events, strict=True)
            for position, episode in enumerate(event.payload["episodes"], start=1)
        ],
    )


def _to_group(event: StoredEvent) -> tuple[Any, ...]:
    payload = event.payload
    prompt, answer, episodes = payload["prompt"], payload["answer"], payload["episodes"]
    return (
        event.job_id,
        event.seq,
        event.time,
        payload["step"],
        payload["row"],
        prompt,
        answer,
        digest_prompt(prompt, answer),
        len(episodes),
        fmean(episode["reward"] for episode in episodes) if episodes else None,
        sum(episode["error"] for episode in episodes),
    )


def forget_rollouts(*, job: Job) -> None:
    """Before they are made again from the events."""
    RolloutGroup.objects.filter(job=job).delete()
