"""Environments of the OpenEnv standard (github.com/meta-pytorch/OpenEnv), over its WebSocket protocol.

Why this standard: its users bring an environment as a server of their own, so nothing of theirs runs in the engine,
which serves many tenants; and it needs no dependency here. (Environments of the verifiers library are Python code that
draws completions itself: hosting them would mean to run tenants' code in the engine and to give the sampling away.)

Each episode is one connection to ``<url>/ws``, on which the server keeps the episode. Sent: ``{"type": "reset", "data":
{"seed": ..., "episode_id": ...}}``, ``{"type": "step", "data": <action>}``, ``{"type": "close"}``. Received: ``{"type":
"observation", "data": {"observation": {...}, "reward": 0.5 or null, "done": false}}`` or ``{"type": "error", "data":
{"message": ..., "code": ...}}``.

The first observation goes to the end of the row's last message, each later one into a user message. Actions and
observations differ by environment: ``action_field``, ``action`` and ``observation_field`` of ``engine.spec.OpenEnv``
say how the text goes in and out. Rewards of the steps are summed up as the reward part ``reward``. The protocol has no
way to repeat a step safely: a connection that is lost ends its episode as an error.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, ValidationError
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from engine.environments.addresses import connect
from engine.environments.protocol import EpisodeError, Observation, Role, TurnMessage
from engine.spec import DatasetRow, OpenEnv

MAX_MESSAGE_BYTES = 4 * 1024 * 1024


class ResultData(BaseModel):
    """What a reset or a step gives."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    observation: dict[str, Any] = {}
    reward: float | None = None
    done: bool = False


class Connecting(connect_websocket):
    """Follows no redirect: the address was checked for this host alone."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class OpenEnvEnvironment:
    """See the module's docstring."""

    roles: frozenset[Role] = frozenset({"user"})

    def __init__(self, settings: OpenEnv, allow_private: bool, token: Callable[[], str]) -> None:
        self._settings = settings
        self._allow_private = allow_private
        self._token = token

    async def start(self, row: DatasetRow, seed: int) -> OpenEnvEpisode:
        connection = await self._connect()
        episode = OpenEnvEpisode(connection, self._settings)
        try:
            await episode.start(seed)
        except BaseException:
            connection.transport.abort()
            raise
        return episode

    async def _connect(self) -> ClientConnection:
        parts = urlsplit(self._settings.url)
        secure = parts.scheme == "https"
        token = self._token()
        try:
            socket = await connect(parts.hostname or "", parts.port or (443 if secure else 80), self._allow_private)
            return await Connecting(
                urlunsplit(("wss" if secure else "ws", parts.netloc, f"{parts.path.rstrip('/')}/ws", "", "")),
                sock=socket,
                proxy=None,
                open_timeout=None,  # the episode's limit counts
                close_timeout=1,
                max_size=MAX_MESSAGE_BYTES,
                compression=None,
                additional_headers={"Authorization": f"Bearer {token}"} if token else {},
            )
        except (OSError, InvalidHandshake) as error:
            raise EpisodeError(f"the environment cannot be reached: {type(error).__name__} {error}") from None


class OpenEnvEpisode:
    """One connection."""

    def __init__(self, connection: ClientConnection, settings: OpenEnv) -> None:
        self.opening: list[TurnMessage] = []
        self._connection = connection
        self._settings = settings
        self._reward = 0.0

    async def start(self, seed: int) -> None:
        result = await self._ask("reset", {"seed": seed, "episode_id": uuid.uuid4().hex})
        if text := self._text(result.observation):
            self.opening = [TurnMessage("user", text)]

    async def reply(self, text: str) -> Observation:
        result = await self._ask("step", {**self._settings.action, self._settings.action_field: text})
        self._reward += result.reward or 0.0
        messages = [] if result.done else [TurnMessage("user", self._text(result.observation))]
        return Observation(messages, result.done, {"reward": self._reward})

    async def close(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._connection.send('{"type": "close"}')
        await self._connection.close()

    async def _ask(self, kind: str, data: dict[str, Any]) -> ResultData:
        try:
            await self._connection.send(json.dumps({"type": kind, "data": data}))
            message = json.loads(await self._connection.recv())
            if message["type"] == "error":
                problem = message["data"]
                details = [str(problem[name]) for name in ("code", "message", "errors") if problem.get(name)]
                raise EpisodeError(f"the environment refused a {kind}: {' '.join(details)}"[:400])
            return ResultData.model_validate(message["data"])
        except ConnectionClosed as error:
            raise EpisodeError(f"the environment closed the connection: {error}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)[:200]
            raise EpisodeError(f"the environment's answer to a {kind} is not as agreed: {problem}") from None

    def _text(self, observation: dict[str, Any]) -> str:
        field = self._settings.observation_field
        if not field:
            return json.dumps(observation, ensure_ascii=False) if observation else ""
        if field not in observation:
            raise EpisodeError(
                f"the environment's observation has no field {field!r}; it has {', '.join(observation)[:200]}"
            )
        value = observation[field]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
