"""Environments on a server of the tenant, over HTTP: protocol version 1.

The engine sends three kinds of POST with a JSON body to the environment's address, and expects status 200 and JSON:

``<url>/start``
    ``{"protocol": 1, "episode": "<id>", "seed": 7, "row": {"messages": [...], "answer": "...", "metadata": {...}}}``
    -> ``{"messages": [...]}``: what to say besides the row's messages; usually none. The seed is the same for all
    episodes of a group, and these must begin alike. The engine makes the id: 32 hexadecimal digits, never used twice.
``<url>/step``
    ``{"protocol": 1, "episode": "<id>", "turn": 1, "text": "the model's reply"}``; turns are counted from 1.
    -> ``{"messages": [{"role": "user", "content": "..."}], "done": false, "rewards": {"reward": 0.5}}``. A role is
    ``user`` or ``tool``. ``rewards`` are the episode's so far, by name; the last answer's count. With ``"done": true``
    no messages.
``<url>/close``
    ``{"protocol": 1, "episode": "<id>"}`` -> anything. The episode will not go on, whether it was done or not.

``messages``, ``done`` and ``rewards`` may be left out: none, false, none. Unknown fields are refused.

*Repeats.* Where an answer is lost the engine sends the same request again. Episode and turn (also in the header
``Idempotency-Key``: ``<id>/<turn>``, 0 for the start) name a request: a server that gets one it has answered sends the
same answer again and plays nothing twice. Connections that fail and the statuses 408, 425, 429 and 5xx are tried again,
up to ``ATTEMPTS`` times, waiting ever longer, as long as the job's ``step_timeout_seconds`` lasts; every other status
ends the episode as an error. Redirects are not followed. An episode the engine does not close (it may die) is the
server's to forget.

*Trust.* The server sees the tenant's rows and the model's replies, and gets the tenant's token as ``Authorization:
Bearer``. Its answers are data: limited in size, and shown to the model as messages.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.environments.protocol import EpisodeError, Observation, Role, TurnMessage
from engine.spec import DatasetRow, Remote

PROTOCOL = 1
ATTEMPTS = 4
FIRST_WAIT_SECONDS = 0.25
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
RETRIED = {408, 425, 429, *range(500, 600)}


class Answer(BaseModel):
    """Base of the server's answers."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


AnswerT = TypeVar("AnswerT", bound=Answer)


class AnswerMessage(Answer):
    role: Literal["user", "tool"] = "user"
    content: str


class StartAnswer(Answer):
    messages: list[AnswerMessage] = []


class StepAnswer(Answer):
    messages: list[AnswerMessage] = []
    done: bool = False
    rewards: dict[str, float] = Field(default_factory=dict)


class RemoteEnvironment:
    """See the module's docstring."""

    roles: frozenset[Role] = frozenset({"user", "tool"})

    def __init__(self, settings: Remote, client: aiohttp.ClientSession, token: Callable[[], str]) -> None:
        """
        Args:
            token: reads the bearer token, empty where there is none; asked at every start, for it may change.
        """
        self._url = settings.url.rstrip("/")
        self._client = client
        self._token = token

    async def start(self, row: DatasetRow, seed: int) -> RemoteEpisode:
        episode = RemoteEpisode(self._client, self._url, self._token())
        await episode.start(row, seed)
        return episode


class RemoteEpisode:
    """One episode on the server."""

    def __init__(self, client: aiohttp.ClientSession, url: str, token: str) -> None:
        self.opening: list[TurnMessage] = []
        self._client = client
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._id = uuid.uuid4().hex
        self._turn = 0

    async def start(self, row: DatasetRow, seed: int) -> None:
        shown = row.model_dump(include={"messages", "answer", "metadata"}, mode="json")
        content = await self._post("start", ATTEMPTS, seed=seed, row=shown)
        self.opening = _messages(_parse(StartAnswer, content).messages)

    async def reply(self, text: str) -> Observation:
        self._turn += 1
        answer = _parse(StepAnswer, await self._post("step", ATTEMPTS, turn=self._turn, text=text))
        return Observation([] if answer.done else _messages(answer.messages), answer.done, answer.rewards)

    async def close(self) -> None:
        await self._post("close", 1)

    async def _post(self, what: str, attempts: int, **fields: Any) -> bytes:
        """Send one request until it is answered. Raises EpisodeError."""
        body = {"protocol": PROTOCOL, "episode": self._id, **fields}
        headers = {**self._headers, "Idempotency-Key": f"{self._id}/{self._turn}"}
        wait = FIRST_WAIT_SECONDS
        for attempt in range(1, attempts + 1):
            try:
                status, content = await self._send(what, body, headers)
                problem = f"status {status}: {content[:200].decode(errors='replace').strip()}"
            except aiohttp.InvalidURL as error:
                raise EpisodeError(f"the environment's address is not valid: {error}") from None
            except (aiohttp.ClientError, TimeoutError) as error:
                status, content, problem = 0, b"", f"{type(error).__name__} {error}".strip()
            if status == 200:
                return content
            if status and status not in RETRIED:
                raise EpisodeError(f"the environment answered {what} with {problem}")
            if attempt < attempts:
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # so that episodes do not come again all at once
                wait *= 2
        raise EpisodeError(f"the environment did not answer {what} in {attempts} attempts; the last: {problem}")

    async def _send(self, what: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, bytes]:
        url = f"{self._url}/{what}"
        async with self._client.post(url, json=body, headers=headers, allow_redirects=False) as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise EpisodeError("the environment's answer is compressed, which it was not asked to be")
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MAX_RESPONSE_BYTES:
                    raise EpisodeError(f"the environment's answer is larger than {MAX_RESPONSE_BYTES} bytes")
            return response.status, bytes(content)


def _parse(kind: type[AnswerT], content: bytes) -> AnswerT:
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EpisodeError(
            f"the environment's answer is not as agreed: {where + ': ' if where else ''}{first['msg']}"
        ) from None


def _messages(messages: list[AnswerMessage]) -> list[TurnMessage]:
    return [TurnMessage(message.role, message.content) for message in messages]
