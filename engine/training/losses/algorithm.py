"""What an algorithm is to the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.spec import TrainingSettings
from engine.training.losses.tokens import PolicyLoss, Tokens

Mean = Literal["tokens", "trajectories", "constant"]
"""How token losses become the loss of a batch of N trajectories, trajectory i with n_i sampled tokens.

``tokens``: sum / sum(n_i), every token weighs the same. ``trajectories``: mean over i of (sum over i / n_i), every
trajectory weighs the same. ``constant``: sum / (N * sampling.max_tokens), no length enters.
"""


@dataclass(frozen=True)
class Algorithm:
    """A loss per token and how it is averaged; advantages are in ``engine.training.advantages``."""

    loss: Callable[[Tokens, TrainingSettings], PolicyLoss]
    mean: Mean = "tokens"
    sequence_ratio: bool = False
    """The loss reads ``Tokens.sequence_log_ratios``."""
