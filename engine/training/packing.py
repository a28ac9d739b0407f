"""Shared-prefix packing: the forward pass computes each prompt once for all the episodes that answer it.

A pack is one row without padding. It holds segments; a segment is a prompt followed by branches, the episodes that
answer it::

    prompt prompt prompt | episode_1 episode_1 | episode_2 episode_2 episode_2 | prompt' ... | episode' ...

Positions restart after the prompt in every branch, and a token attends to its own prompt and its own branch only
(``attention``), so its log-probability is what it would be if its episode were the only one in the row.

Invariants: the ids trained are the ids of the trajectories, one by one; a token is trained if and only if its loss mask
is true and its trajectory has a gradient: its advantage is not exactly 0, or there is a KL or entropy term (one without
gradient is left out, but its tokens count in the normaliser); a trajectory is never cut; neither the token budget nor
batch mates change any value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.types import Group, TrainBatch, Trajectory


@dataclass(frozen=True)
class Segment:
    """A prompt and its branches, by length in tokens."""

    prompt_length: int
    branch_lengths: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.prompt_length + sum(self.branch_lengths)


@dataclass
class Pack:
    """One row for the model (N tokens) and its trained tokens (T of them)."""

    input_ids: list[int] = field(default_factory=list)
    """[N]"""
    position_ids: list[int] = field(default_factory=list)
    """[N]"""
    segments: list[Segment] = field(default_factory=list)
    """In order; their lengths add up to N."""
    sources: list[int] = field(default_factory=list)
    """[T] index into the row of the token that predicts the trained token, that is the one before it."""
    targets: list[int] = field(default_factory=list)
    """[T] id of the trained token."""
    sampler_logprobs: list[float] = field(default_factory=list)
    """[T]"""
    advantages: list[float] = field(default_factory=list)
    """[T]"""
    weights: list[float] = field(default_factory=list)
    """[T] how much each token counts in the batch's mean, 1 on average."""
    trajectories: list[int] = field(default_factory=list)
    """[T] which of the pack's trajectories each token belongs to, counted from 0."""


@dataclass(frozen=True)
class _Branch:
    trajectory: Trajectory
    advantage: float
    weight: float
    """Of each of its tokens."""

    @property
    def input_length(self) -> int:
        """Tokens the model must read: up to the one before the last trained token."""
        mask = self.trajectory.loss_mask
        return max((index for index, trained in enumerate(mask) if trained), default=0)


def count_model_tokens(batch: TrainBatch) -> int:
    """Tokens the model sampled in the whole batch."""
    return sum(sum(trajectory.loss_mask) for group in batch.groups for trajectory in group.trajectories)


def count_row_tokens(batch: TrainBatch) -> int:
    """At most so many tokens are computed for a batch that is not split."""
    return sum(
        len(group.prompt_ids) + sum(len(trajectory.token_ids) for trajectory in group.trajectories)
        for group in batch.groups
    )


def build_packs(
    batch: TrainBatch, token_budget: int, *, size: int = 0, every_trajectory: bool = False,
    equal_trajectories: bool = False,
) -> list[Pack]:  # fmt: skip
    """The packs of a batch, in order, each at most ``token_budget`` tokens; with ``size`` at most so many, where no
    group is longer.

    A group too long for the budget is split and its prompt repeated; one episode too long gets a pack of its own.
    ``every_trajectory``: those of advantage 0 too. ``equal_trajectories``: a token's weight is inverse to the length of
    its trajectory, so that all trajectories weigh the same.
    """
    packs: list[Pack] = []
    mean_length = count_model_tokens(batch) / max(1, sum(len(group.trajectories) for group in batch.groups))
    for group, advantages in zip(batch.groups, batch.advantages, strict=True):
        branches_of_group = [
            _Branch(trajectory, advantage, mean_length / sum(trajectory.loss_mask) if equal_trajectories else 1.0)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
            if any(trajectory.loss_mask) and (every_trajectory or advantage != 0)
        ]
        for branches in _split(group, branches_of_group, token_budget):
            length = len(group.prompt_ids) + sum(branch.input_length for branch in branches)
            if not packs or len(packs[-1].input_ids) + length > (size or token_budget):
                packs.append(Pack())
            _append(packs[-1], group.prompt_ids, branches)
    return packs


def _split(group: Group, branches: list[_Branch], token_budget: int) -> list[list[_Branch]]:
    """The branches in runs that fit the budget together with the group's prompt."""
    runs: list[list[_Branch]] = []
    room = 0
    for branch in branches:
        if not runs or branch.input_length > room:
            runs.append([])
            room = token_budget - len(group.prompt_ids)
        runs[-1].append(branch)
        room -= branch.input_length
    return runs


def _append(pack: Pack, prompt_ids: list[int], branches: list[_Branch]) -> None:
    start = len(pack.input_ids)
    prompt_length = len(prompt_ids)
    pack.input_ids += prompt_ids
    pack.position_ids += range(prompt_length)
    first = sum(len(segment.branch_lengths) for segment in pack.segments)
    for number, branch in enumerate(branches, first):
        branch_start = len(pack.input_ids)
        length = branch.input_length
        trajectory = branch.trajectory
        pack.input_ids += trajectory.token_ids[:length]
        pack.position_ids += range(prompt_length, prompt_length + length)
        for index, trained in enumerate(trajectory.loss_mask):
            if trained:
                pack.sources.append(branch_start + index - 1 if index else start + prompt_length - 1)
                pack.targets.append(trajectory.token_ids[index])
                pack.sampler_logprobs.append(trajectory.logprobs[index])
                pack.advantages.append(branch.advantage)
                pack.weights.append(branch.weight)
                pack.trajectories.append(number)
    pack.segments.append(Segment(prompt_length, tuple(branch.input_length for branch in branches)))
