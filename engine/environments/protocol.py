"""What an environment is: it opens an episode on a row and answers each reply of the model until it is done.

An environment speaks in messages; token ids, sampling, limits and grading are the worker's business. It may raise
:class:`EpisodeError` wherever it cannot go on: that episode then ends as an error with this reason, and no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.spec import DatasetRow

Role = Literal["user", "tool"]


class EpisodeError(Exception):
    """The episode cannot go on. The message is the reason shown to the tenant."""


@dataclass(frozen=True)
class TurnMessage:
    """A message of the environment."""

    role: Role
    """``tool``: the result of a call. A chat template that knows no such role gets it as the user's message."""
    content: str


@dataclass(frozen=True)
class Observation:
    """What the environment says after a reply of the model."""

    messages: list[TurnMessage]
    """Put after the model's reply; empty where ``done``."""
    done: bool
    """The episode is over and will be graded."""
    parts: dict[str, float] = field(default_factory=dict)
    """Reward parts and counts of the episode so far, by name (``[a-z][a-z0-9_]*``), finite. The last ones count."""


class Episode(Protocol):
    """One episode in progress; belongs to one trajectory."""

    opening: list[TurnMessage]
    """Put after the row's messages. The same for all episodes of a group, which share their prompt."""

    async def reply(self, text: str) -> Observation:
        """Take the model's message and say what follows."""

    async def close(self) -> None:
        """Free what the episode holds; called once, also where it failed. Raises nothing but EpisodeError."""


class Environment(Protocol):
    """Makes episodes; stateless, shared by all episodes of a job."""

    roles: frozenset[Role]
    """Roles its messages may have; the base model's chat template is checked for them before the job starts."""

    async def start(self, row: DatasetRow, seed: int) -> Episode:
        """Open an episode on a row. The row's messages are its prompt.

        Args:
            seed: the same for all episodes of a group, so that they begin alike.
        """
