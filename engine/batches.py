"""From finished groups to what is trained and what is reported. Pure functions, no I/O."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict

from engine.events import AdapterPublished, Episode, RolloutGroup, Span
from engine.reward_errors import scored
from engine.spec import JobSpec, adapter_name
from engine.training.advantages import has_signal
from engine.types import Commit, Group, StepResult, Trajectory

SOLVED = 0.999
"""A total from here on counts as correct in ``accuracy``."""


def sampling_seed(seed: int, drawn: int, attempt: int = 0) -> int:
    """Seed of the ``drawn``-th prompt of a job; neighbours are far apart: completion i uses seed + i."""
    digest = hashlib.sha256(f"{seed}/{drawn}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4]) & 0x7FFFFFFF


def trajectories(groups: list[Group]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def rewards(group: Group) -> list[float]:
    return [trajectory.score.total for trajectory in group.trajectories]


def accuracy(groups: list[Group]) -> float:
    """Share of episodes whose total counts as correct."""
    return statistics.fmean(t.score.total >= SOLVED for t in trajectories(groups))


def batch_metrics(spec: JobSpec, groups: list[Group]) -> dict[str, float]:
    """What is known of a batch before it is trained. Keys as in ``engine.events.StepCommitted``."""
    episodes = trajectories(groups)
    lengths = [sum(t.loss_mask) for t in episodes]
    metrics = {
        "completion_tokens_mean": statistics.fmean(lengths),
        "truncated_fraction": statistics.fmean(t.truncated for t in episodes),
        "reward_errors": float(sum(t.score.error for t in episodes)),
        "tokens_sampled": float(sum(lengths) + sum(t.score.judge_tokens for t in episodes)),
    }
    left = [group for group in (scored(spec, group) for group in groups) if group.trajectories]
    if spec.reward_errors.mode == "drop_episode":
        metrics["dropped_episodes"] = float(len(episodes) - len(trajectories(left)))
        metrics["dropped_groups"] = float(len(groups) - len(left))
    return {**_reward_metrics(spec, left), **metrics} if left else metrics


def _reward_metrics(spec: JobSpec, groups: list[Group]) -> dict[str, float]:
    totals = [t.score.total for t in trajectories(groups)]
    parts: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories(groups):
        for name, value in trajectory.score.parts.items():
            parts[name].append(value)
    return {
        "reward_mean": statistics.fmean(totals),
        "reward_std": statistics.pstdev(totals),
        "accuracy": accuracy(groups),
        "zero_variance_groups": float(sum(not has_signal(spec, group) for group in groups)),
        **{f"reward_{name}": statistics.fmean(values) for name, values in parts.items()},
    }


def rollout_event(step: int, group: Group, advantages: list[float]) -> RolloutGroup:
    """A group as shown to a person."""
    return RolloutGroup(
        step=step,
        row=group.row,
        prompt=group.prompt_text,
        answer=group.answer,
        episodes=[
            Episode(
                completion=trajectory.text,
                reward=trajectory.score.total,
                parts=trajectory.score.parts,
                reason=trajectory.score.reason,
                error=trajectory.score.error,
                advantage=advantage,
                tokens=sum(trajectory.loss_mask),
                truncated=trajectory.truncated,
                adapter_version=trajectory.adapter_version or 0,
            )
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        ],
    )


def rollout_events(step: int, groups: list[Group], advantages: list[list[float]]) -> list[RolloutGroup]:
    """A batch as shown to a person; ``advantages``: [group][trajectory]."""
    return [rollout_event(step, group, of_group) for group, of_group in zip(groups, advantages, strict=True)]


def published_event(commit: Commit, final: bool = False) -> AdapterPublished:
    """A committed version as an event; ``final`` where it is the job's result."""
    return AdapterPublished(
        adapter_version=commit.version,
        name=adapter_name(commit.job_id, commit.version),
        step=commit.step,
        path=commit.path,
        sha256=commit.sha256,
        size_bytes=commit.size_bytes,
        rank=commit.rank,
        final=final,
    )


def describe_silence(groups: list[Group], batches: int) -> str:
    """Why there was nothing to learn from in the last ``batches`` batches, of which ``groups`` is the last."""
    episodes = trajectories(groups)
    errors = [t.score.reason for t in episodes if t.score.error]
    if len(errors) == len(episodes):
        return f"The reward failed on every completion of the last {batches} batches: {errors[0]}"
    totals = sorted({round(t.score.total, 3) for t in episodes})
    if len(totals) == 1:
        return f"The reward never varied: every completion of the last {batches} batches scored {totals[0]:g}."
    return (
        f"The reward never varied among the completions of one prompt in the last {batches} batches, "
        "so nothing tells a better completion from a worse one."
    )


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """Without what cannot be reported: not a number, or infinite."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def step_spans(result: StepResult, queued: float, trained: float, published: float) -> list[Span]:
    """The waiting for the lane, the turn in it and the publish (the commit included) of a step; in epoch seconds."""
    start = max(queued, trained - result.turn_seconds)
    tokens = int(result.metrics["tokens_trained"])
    return [
        Span(stage="queue", worker="trainer", start=queued, end=start),
        Span(stage="train", worker="trainer", start=start, end=trained, tokens=tokens),
        Span(stage="publish", worker="rollout", start=trained, end=published),
    ]
