"""What an environment is: it opens an episode with messages and answers each reply of the model until it is done.

An environment speaks in messages; token ids, sampling and grading are the worker's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.spec import DatasetRow, Message


@dataclass(frozen=True)
class Observation:
    """What the environment says after a reply of the model."""

    messages: list[Message]
    """Put after the model's reply; empty where ``done``."""
    done: bool
    """The episode is over and will be graded."""


class Episode(Protocol):
    """One episode in progress; belongs to one trajectory."""

    async def reply(self, text: str) -> Observation:
        """Take the model's message and say what follows."""


class Environment(Protocol):
    """Makes episodes; stateless, shared by all episodes of a job."""

    def start(self, row: DatasetRow) -> Episode:
        """Open an episode on a row. The row's messages are its prompt."""
