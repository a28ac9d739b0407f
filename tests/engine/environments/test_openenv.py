"""OpenEnv environments, by a WebSocket server on this machine that speaks as OpenEnv's own does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.datastructures import Headers

from engine.chat import ChatRenderer
from engine.environments.factory import Environments
from engine.environments.protocol import EpisodeError, Observation, TurnMessage
from engine.environments.worker import EnvironmentWorker
from engine.spec import EnvironmentReward, OpenEnv
from tests.engine.environments.playing import ROW, Model, job, play


class Arena:
    """An environment for each connection: three steps, each rewarded with 0.25, and none with null."""

    def __init__(self) -> None:
        self.received: list[list[dict[str, Any]]] = []
        self.headers: list[Headers] = []
        self.paths: list[str] = []
        self.answer: Callable[[dict[str, Any], int], str | None] = lambda message, step: None
        """Asked first; what it returns is sent in place of the answer."""
        self.left = asyncio.Event()
        """A client is gone."""
        self.url = ""

    async def handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.headers.append(connection.request.headers)
        self.paths.append(connection.request.path)
        received: list[dict[str, Any]] = []
        self.received.append(received)
        try:
            await self.converse(connection, received)
        finally:
            self.left.set()

    async def converse(self, connection: ServerConnection, received: list[dict[str, Any]]) -> None:
        async for raw in connection:
            message = json.loads(raw)
            received.append(message)
            if message["type"] == "close":
                return
            step = sum(one["type"] == "step" for one in received)
            answer = self.answer(message, step)
            if answer == "hang up":
                connection.transport.abort()
                return
            await connection.send(answer or self.play(step))

    def play(self, step: int) -> str:
        observation = {"text": f"room {step}", "exits": ["north"]}
        reward = 0.25 if step else None
        return json.dumps(
            {"type": "observation", "data": {"observation": observation, "reward": reward, "done": step == 3}}
        )


@pytest_asyncio.fixture
async def arena() -> AsyncIterator[Arena]:
    arena = Arena()
    async with serve(arena.handle, "127.0.0.1", 0) as server:
        arena.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/arena"
        yield arena


async def start(arena: Arena, *, allow: bool = True, **settings: Any):
    environment = await Environments(None, allow).get(job(OpenEnv(url=arena.url, **settings)))
    return await environment.start(ROW, 7)


async def test_a_group_plays_in_the_arena(tiny_model: Path, arena: Arena) -> None:
    model = Model(ChatRenderer(tiny_model), ["go", "go on", "out"], ["north", "on", "in"])
    worker = EnvironmentWorker(tiny_model, 2, model, allow_private=True)
    spec = job(
        OpenEnv(url=arena.url, observation_field="text", action_field="command", action={"player": 1}),
        grader=EnvironmentReward(),
    )
    group = (await play(worker, spec, model)).group
    assert group.prompt_text == "What is 6 * 7?\n\nroom 0"
    assert [t.score.total for t in group.trajectories] == [0.75, 0.75]
    assert "[user] room 1\n\ngo on\n\n[user] room 2\n\nout" in group.trajectories[0].text
    await worker.close()
    assert arena.paths == ["/arena/ws"] * 2
    for received in arena.received:
        assert [message["type"] for message in received] == ["reset", "step", "step", "step", "close"]
        assert received[0]["data"]["seed"] == 99
    assert {received[1]["data"]["command"] for received in arena.received} == {"go", "north"}
    assert arena.received[0][1]["data"]["player"] == 1
    assert len({received[0]["data"]["episode_id"] for received in arena.received}) == 2


async def test_without_a_field_the_whole_observation_is_shown(arena: Arena) -> None:
    episode = await start(arena)
    assert episode.opening == [TurnMessage("user", '{"text": "room 0", "exits": ["north"]}')]
    observation = await episode.reply("on")
    assert observation == Observation(
        [TurnMessage("user", '{"text": "room 1", "exits": ["north"]}')], False, {"reward": 0.25}
    )
    await episode.close()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("hang up", "closed the connection"),
        ("hello", "is not as agreed"),
        ('"hello"', "is not as agreed"),
        ('{"type": "observation"}', "is not as agreed"),
        ('{"type": "observation", "data": {"observation": [1]}}', "is not as agreed"),
        ('{"type": "observation", "data": {"observation": {}, "reward": NaN}}', "is not as agreed: .*finite"),
        ('{"type": "error", "data": {"message": "no such move", "code": "X"}}', "refused a step: X no such move"),
        ('{"type": "error", "data": "no"}', "is not as agreed"),
        (json.dumps({"type": "observation", "data": {"observation": {"x": 1}}}), "has no field 'text'; it has x"),
        (" " * 5_000_000, "closed the connection"),
    ],
)
async def test_an_answer_that_is_not_as_agreed_ends_the_episode(arena: Arena, answer: str, says: str) -> None:
    episode = await start(arena, observation_field="text")
    arena.answer = lambda message, step: answer
    with pytest.raises(EpisodeError, match=says):
        await episode.reply("on")
    await episode.close()


async def test_a_lost_connection_is_an_error_of_its_episode_alone(tiny_model: Path, arena: Arena) -> None:
    arena.answer = lambda message, step: "hang up" if message["data"].get("message") == "bad" else None
    model = Model(ChatRenderer(tiny_model), ["a", "b", "c"], ["bad"])
    worker = EnvironmentWorker(tiny_model, 2, model, allow_private=True)
    spec = job(OpenEnv(url=arena.url), grader=EnvironmentReward())
    good, bad = (await play(worker, spec, model)).group.trajectories
    assert (good.score.total, good.score.error) == (0.75, False)
    assert (bad.score.total, bad.score.error) == (0, True)
    await worker.close()


async def test_a_server_that_refuses_the_connection_is_an_error(arena: Arena) -> None:
    arena.url = arena.url.rsplit(":", 1)[0] + ":1"
    with pytest.raises(EpisodeError, match="cannot be reached"):
        await start(arena)


async def test_private_addresses_are_refused(arena: Arena) -> None:
    with pytest.raises(EpisodeError, match="not on the public internet"):
        await start(arena, allow=False)
    assert not arena.received


async def test_redirects_are_not_followed(arena: Arena) -> None:
    def redirect(connection: ServerConnection, request: Request) -> Response:
        return Response(307, "Temporary Redirect", Headers({"Location": there}))

    there = arena.url.replace("http", "ws") + "/ws"
    async with serve(arena.handle, "127.0.0.1", 0, process_request=redirect) as server:
        arena.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/elsewhere"
        with pytest.raises(EpisodeError, match="cannot be reached"):
            await start(arena)
    assert not arena.received


async def test_the_tenants_token_is_sent(arena: Arena, tmp_path: Path) -> None:
    path = tmp_path / "acme" / "tokens" / "arena"
    path.parent.mkdir(parents=True)
    path.write_text("s3cret")
    environment = await Environments(tmp_path, True).get(job(OpenEnv(url=arena.url, token_name="arena")))
    await (await environment.start(ROW, 7)).close()
    assert arena.headers[0]["Authorization"] == "Bearer s3cret"


async def test_a_start_that_fails_leaves_no_connection(arena: Arena) -> None:
    arena.answer = lambda message, step: "no JSON"
    with pytest.raises(EpisodeError, match="is not as agreed"):
        await start(arena)
    async with asyncio.timeout(10):
        await arena.left.wait()
