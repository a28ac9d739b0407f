"""One episode of several turns, token in, token out.

Invariants: the model's sampled ids and log-probabilities are kept exactly, its end-of-turn token included, and are all
the loss mask covers; what the environment adds is tokenised once, as a delta, and never changed after. Whatever the
environment does (hangs, dies, floods), the episode ends at its limit with the turns it had, and its group goes on; an
episode that a limit of turns or tokens ends is scored as far as it got.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from engine.chat import ChatRenderer, TemplateError
from engine.environments.protocol import Environment, Episode, EpisodeError, Observation, TurnMessage
from engine.environments.timing import StageTimes
from engine.spec import DatasetRow, Message, MultiTurn, Turn
from engine.types import Completion

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

CLOSE_SECONDS = 5.0
"""An episode has so long to free what it holds."""
MAX_PARTS = 32
PART_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass
class Transcript:
    """What an episode has so far, after its prompt."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    """The model's."""
    lines: list[str] = field(default_factory=list)
    """All that was said, for people."""
    turns: list[Turn] = field(default_factory=list)
    """All that was said, for graders."""
    parts: dict[str, float] = field(default_factory=dict)
    """The environment's reward parts and counts."""
    limit: str = ""
    """The limit that ended the episode, where one did."""
    error: str = ""
    """Why the environment could not go on, where it could not."""

    def add_reply(self, completion: Completion) -> None:
        self.token_ids += completion.token_ids
        self.loss_mask += [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.replies.append(completion.text)
        self.lines.append(completion.text)
        self.turns.append(Turn(role="assistant", content=completion.text))

    def add_observation(self, messages: list[TurnMessage], token_ids: list[int]) -> None:
        self.token_ids += token_ids
        self.loss_mask += [False] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)
        self.lines += [f"[{message.role}] {message.content}" for message in messages]
        self.turns += [Turn(role=message.role, content=message.content) for message in messages]


class Stepper:
    """An environment's side of one episode, every wait and every answer of it within its limits."""

    def __init__(self, settings: MultiTurn, times: StageTimes) -> None:
        self._settings = settings
        self._times = times
        self._episode: Episode | None = None
        self.error = ""
        """Why the episode did not open, where it did not."""
        self.opening: list[TurnMessage] = []

    async def open(self, environment: Environment, row: DatasetRow, seed: int) -> None:
        """Start the episode. What goes wrong is left in ``error``."""
        try:
            self._episode = await self._within_limit(environment.start(row, seed), "start")
            self._check_length(self._episode.opening)
            self.opening = self._episode.opening
        except EpisodeError as error:
            self.error = str(error)

    async def reply(self, text: str) -> Observation:
        """Raises EpisodeError where the environment does not answer properly."""
        if self._episode is None or self.error:
            raise EpisodeError(self.error)
        observation = await self._within_limit(self._episode.reply(text), "answer")
        self._check_length(observation.messages)
        if not observation.done and not observation.messages:
            raise EpisodeError("the environment neither ended the episode nor said anything")
        check_parts(observation.parts)
        return observation

    async def close(self) -> None:
        """Free what the episode holds, beside the job's own work. Raises nothing."""
        if self._episode is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._episode.close()
        except Exception as error:
            log.warning("an episode was not closed: %s: %s", type(error).__name__, error)

    async def _within_limit(self, answer: Awaitable[Answer], what: str) -> Answer:
        limit = self._settings.step_timeout_seconds
        start = time.time()
        try:
            async with asyncio.timeout(limit):
                return await answer
        except TimeoutError:
            raise EpisodeError(f"the environment did not {what} within {limit:g} s") from None
        except EpisodeError:
            raise
        except Exception as error:
            raise EpisodeError(f"the environment failed: {type(error).__name__}: {str(error)[:200]}") from error
        finally:
            self._times.add("environment", start, time.time())

    def _check_length(self, messages: list[TurnMessage]) -> None:
        length, limit = sum(len(message.content) for message in messages), self._settings.max_observation_characters
        if length > limit:
            raise EpisodeError(f"the environment's answer of {length} characters is longer than the limit of {limit}")


def check_parts(parts: dict[str, float]) -> None:
    """Raise EpisodeError where reward parts are not what the protocol allows."""
    if len(parts) > MAX_PARTS:
        raise EpisodeError(f"the environment gave {len(parts)} reward parts, more than {MAX_PARTS}")
    for name, value in parts.items():
        if not PART_NAME.fullmatch(name):
            raise EpisodeError(f"the environment named a reward part {name[:60]!r}; use a-z, 0-9 and _")
        if not math.isfinite(value):
            raise EpisodeError(f"the environment's reward part {name} is not a finite number")


def next_turn(
    transcript: Transcript,
    observation: Observation,
    settings: MultiTurn,
    renderer: ChatRenderer,
    turn_tokens: int,
    room: int,
) -> int:
    """Put the environment's answer after the model's reply, if another turn may follow.

    Args:
        turn_tokens: longest reply.
        room: tokens the episode may have in all.

    Returns:
        The longest next reply in tokens; 0 where a limit ends the episode, named in ``transcript.limit``.

    Raises:
        EpisodeError: the base model's chat template does not take these messages.
    """
    turns = len(transcript.replies)
    if turns >= settings.max_turns:
        transcript.limit = f"ended by the limit of {settings.max_turns} turns"
        return 0
    try:
        delta = renderer.turn_ids(observation.messages)
    except TemplateError as error:
        raise EpisodeError(str(error)) from None
    left = room - len(transcript.token_ids) - len(delta)
    if left < 1:
        transcript.limit = f"ended by the limit of {room} tokens an episode, in turn {turns + 1}"
        return 0
    transcript.add_observation(observation.messages, delta)
    return min(turn_tokens, left)


def turn_seed(seed: int, episode: int, turn: int) -> int:
    """Seed of one later turn of one episode; the first turn of all episodes is one request with ``seed`` itself."""
    digest = hashlib.sha256(f"{seed}/{episode}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4]) & 0x7FFFFFFF


def open_prompt(
    steppers: list[Stepper],
    row: DatasetRow,
    prompt_ids: list[int],
    settings: MultiTurn,
    renderer: ChatRenderer,
    context_length: int,
) -> tuple[DatasetRow, list[int]]:
    """The prompt of a group whose environment opens the episodes with something of its own.

    The opening is put at the end of the row's last message, for many templates take no two messages of one role in a
    row. An episode that opened otherwise than the group's first gets an error: the episodes of a group share their
    prompt. So do all where the opening leaves no room in the context; the row's own prompt then serves.

    Returns:
        The row as the model sees it, and its token ids.
    """
    opened = [stepper for stepper in steppers if not stepper.error]
    if not opened or not opened[0].opening:
        return row, prompt_ids
    opening = opened[0].opening
    for stepper in opened:
        if stepper.opening != opening:
            stepper.error = "the environment opened the episodes of one group differently; let the seed decide"
    *earlier, last = row.messages
    text = "\n\n".join([last.content, *(message.content for message in opening)])
    shown = row.model_copy(update={"messages": [*earlier, Message(role="user", content=text)]})
    shown_ids = renderer.prompt_ids(shown.messages, settings.system_prompt)
    if len(shown_ids) >= context_length:
        for stepper in opened:
            stepper.error = (
                f"the row's prompt with the environment's opening has {len(shown_ids)} tokens and does not fit the "
                f"context of {context_length}"
            )
        return row, prompt_ids
    return shown, shown_ids
