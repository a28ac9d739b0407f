"""What the doctor remembers of a job: bounded, however long the job runs, and all of it JSON."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from pydantic import BaseModel

from engine.batches import SOLVED
from engine.spec import JobSpec
from engine.types import Group

OBSERVATIONS = 16
"""Batches remembered: enough for the smallest jobs (one prompt a step) to show a share."""
ENOUGH_EPISODES = 64
"""Shares over episodes look back as far as it takes for so many: their standard error is then at most 0.06."""
ENOUGH_GROUPS = 48
"""The same for shares over groups."""
AT_LEAST = 3
"""Batches; one odd batch is no trend."""
GAIN = 0.05
"""Smoothed reward must rise by more to count as better: else luck alone would keep moving the mark."""
SETTLED = 8
"""Batches without such a gain, in small jobs more, after which the reward counts as no longer rising."""
START = 3
"""So many first values make up the value a run started from."""
ERROR_LENGTH = 200
"""Characters kept of an error's text."""


class Observation(BaseModel):
    """One batch. None: not known of it, such as the entropy of a batch that was not trained."""

    groups: int
    episodes: int
    reward: float | None = None
    silent: float | None = None
    """Groups without learning signal: no episode had an advantage."""
    solved: float | None = None
    """Those of them in which every episode was right."""
    identical: float | None = None
    """Groups with the same tokens in every episode that were not solved."""
    truncated: float | None = None
    """Episodes."""
    errors: float | None = None
    """Episodes."""
    tokens: float | None = None
    """Mean completion length."""
    entropy: float | None = None
    kl: float | None = None
    ratio: float | None = None
    clipped: float | None = None
    gap: float | None = None
    environment_seconds: float | None = None
    all_seconds: float | None = None


class Best(BaseModel):
    """How the run was when its smoothed training reward was highest (by ``GAIN``)."""

    reward: float
    tokens: float | None = None
    kl: float | None = None
    age: int = 0
    """Batches since."""


class Evaluation(BaseModel):
    """One evaluation, and the smoothed training reward at the time."""

    step: int
    accuracy: float
    reward_mean: float
    training: float | None = None


class Peak(BaseModel):
    """Highest mean of two successive evaluations in one measure."""

    value: float
    step: int
    training: float


@dataclass(frozen=True)
class Pooled:
    """A count over the newest batches."""

    hits: float
    total: int
    batches: int

    @property
    def share(self) -> float:
        return self.hits / self.total


class History(BaseModel):
    """Oldest first. Numbers are kept to six digits."""

    observations: list[Observation] = []
    first_entropies: list[float] = []
    """At most ``START``."""
    best: Best | None = None
    evaluations: list[Evaluation] = []
    """The last two."""
    peaks: dict[str, Peak] = {}
    """By measure, ``accuracy`` or ``reward_mean``."""
    last_error: str = ""
    """What a reward error said last."""

    # --- taking in ---

    def add_batch(self, metrics: dict[str, float], groups: list[Group], spec: JobSpec) -> None:
        new = _observe(metrics, groups, spec)
        self.observations = [*self.observations, new][-OBSERVATIONS:]
        if new.entropy is not None and len(self.first_entropies) < START:
            self.first_entropies = [*self.first_entropies, new.entropy]
        errors = [t.score.reason for group in groups for t in group.trajectories if t.score.error]
        self.last_error = errors[-1][:ERROR_LENGTH] if errors else self.last_error
        for evaluation in self.evaluations:
            evaluation.training = self.training if evaluation.training is None else evaluation.training
        if self.best is not None:
            self.best.age += 1
        reward = self.smoothed("reward")
        full = len(self.observations) >= self.window
        if reward is not None and full and (self.best is None or reward > self.best.reward + GAIN):
            self.best = Best(reward=reward, tokens=self.smoothed("tokens"), kl=self.smoothed("kl"))

    def add_evaluation(self, step: int, accuracy: float, reward_mean: float) -> None:
        new = Evaluation(step=step, accuracy=accuracy, reward_mean=reward_mean, training=self.training)
        self.evaluations = [*self.evaluations, new][-2:]
        for measure in ("accuracy", "reward_mean"):
            pair = self.newest_pair(measure)
            if pair and (measure not in self.peaks or pair.value >= self.peaks[measure].value):
                self.peaks[measure] = pair

    # --- looking back ---

    def recent(self, signal: str, n: int) -> list[float]:
        """The last ``n`` known values of a signal, or fewer."""
        values = [getattr(observation, signal) for observation in self.observations]
        return [value for value in values if value is not None][-n:]

    def median(self, signal: str, n: int, at_least: int = AT_LEAST) -> float | None:
        """Of the last ``n`` known values: one outlier moves it little. None with fewer than ``at_least``."""
        values = self.recent(signal, n)
        return statistics.median(values) if len(values) >= at_least else None

    @property
    def start_entropy(self) -> float | None:
        """What the run started from."""
        return statistics.fmean(self.first_entropies) if len(self.first_entropies) == START else None

    def pooled(self, signal: str, per: str, enough: int, at_least: int = AT_LEAST) -> Pooled | None:
        """Sum of a count over the newest batches, as many as hold ``enough`` episodes or groups (``per``).

        None where it is known of fewer than ``at_least`` batches.
        """
        count, total, batches = 0.0, 0, 0
        for observation in reversed(self.observations):
            if (value := getattr(observation, signal)) is None:
                continue
            count, total, batches = count + value, total + getattr(observation, per), batches + 1
            if batches >= AT_LEAST and total >= enough:
                break
        return Pooled(count, total, batches) if batches >= at_least and total else None

    @property
    def window(self) -> int:
        """Batches that are averaged: they hold ``ENOUGH_GROUPS``, since prompts differ more than answers to one."""
        return min(OBSERVATIONS, max(AT_LEAST, math.ceil(ENOUGH_GROUPS / self.observations[-1].groups)))

    def smoothed(self, signal: str) -> float | None:
        """Mean over the window, of the batches in which the signal is known."""
        values = [value for o in self.observations[-self.window :] if (value := getattr(o, signal)) is not None]
        return statistics.fmean(values) if values else None

    @property
    def settled(self) -> Best | None:
        """How the run was at its best, once the reward is no longer rising: only then may change be for nothing."""
        return self.best if self.best and self.best.age >= max(SETTLED, self.window) else None

    @property
    def training(self) -> float | None:
        """Mean training reward of all batches remembered: compared with evaluations, which are some batches apart."""
        rewards = self.recent("reward", OBSERVATIONS)
        return statistics.fmean(rewards) if rewards else None

    def newest_pair(self, measure: str) -> Peak | None:
        """Mean of the last two evaluations: one alone is too noisy to judge by."""
        training = [evaluation.training for evaluation in self.evaluations if evaluation.training is not None]
        if len(self.evaluations) < 2 or not training:
            return None
        return Peak(
            value=statistics.fmean(getattr(evaluation, measure) for evaluation in self.evaluations),
            step=self.evaluations[-1].step,
            training=statistics.fmean(training),
        )


def _observe(metrics: dict[str, float], groups: list[Group], spec: JobSpec) -> Observation:
    """``groups`` may be empty, after a restart for instance; then what only they tell is estimated or left out."""
    group_count = len(groups) or spec.training.prompts_per_step
    episodes = sum(len(group.trajectories) for group in groups) or group_count * spec.training.group_size
    known = {name: float(f"{value:.6g}") for name, value in metrics.items() if math.isfinite(value)}
    seconds = {name: known.get(f"{name}_seconds") for name in ("rollout", "environment", "train", "publish")}
    silent, accuracy = known.get("zero_variance_groups"), known.get("accuracy")
    if groups:
        solved: float | None = float(sum(_all_solved(group) for group in groups))
    else:
        # at most so many; taking the most errs on the side of a healthy run
        solved = None if silent is None or accuracy is None else min(silent, accuracy * group_count)
    truncated = known.get("truncated_fraction")
    return Observation(
        groups=group_count,
        episodes=episodes,
        reward=known.get("reward_mean"),
        silent=silent,
        solved=solved,
        identical=float(sum(_identical(group) and not _all_solved(group) for group in groups)) if groups else None,
        truncated=None if truncated is None else truncated * episodes,
        errors=known.get("reward_errors"),
        tokens=known.get("completion_tokens_mean"),
        entropy=known.get("entropy"),
        kl=known.get("kl"),
        ratio=known.get("ratio_mean"),
        clipped=known.get("clip_fraction"),
        gap=known.get("logprob_gap"),
        environment_seconds=seconds["environment"],
        all_seconds=None if seconds["environment"] is None else sum(value or 0.0 for value in seconds.values()),
    )


def _all_solved(group: Group) -> bool:
    return all(trajectory.score.total >= SOLVED for trajectory in group.trajectories)


def _identical(group: Group) -> bool:
    return len({tuple(trajectory.token_ids) for trajectory in group.trajectories}) == 1
