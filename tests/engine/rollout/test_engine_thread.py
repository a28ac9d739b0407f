"""The engine's thread with an engine that does as told."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from engine.rollout.engine_thread import EngineBroken, EngineThread


class FakeEngine:
    """Finishes a request once its prompt's number of steps is done; raises on a negative number."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.aborted: list[str] = []
        self.paused = threading.Event()
        self.paused.set()
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def add_request(self, request_id: str, steps: Any, params: Any, lora_request: Any, priority: int) -> str:
        if steps is None:
            raise ValueError("no steps")
        self.requests[request_id] = steps
        return request_id + "-internal"

    def abort_request(self, request_ids: list[str], internal: bool) -> None:
        assert internal
        for request_id in request_ids:
            self.aborted.append(request_id)
            del self.requests[request_id.removesuffix("-internal")]

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[SimpleNamespace]:
        self.paused.wait()
        if any(steps < 0 for steps in self.requests.values()):
            raise RuntimeError("out of memory")
        self.requests = {request_id: steps - 1 for request_id, steps in self.requests.items()}
        done = [request_id for request_id, steps in self.requests.items() if steps <= 0]
        for request_id in done:
            del self.requests[request_id]
        return [SimpleNamespace(request_id=request_id, finished=True) for request_id in done]


def start(engine: FakeEngine, broken: list[BaseException] | None = None) -> EngineThread:
    thread = EngineThread(lambda: engine, (broken if broken is not None else []).append)  # type: ignore[arg-type, return-value]
    thread.start()
    return thread


async def generate(thread: EngineThread, request_id: str, steps: int | None) -> str:
    return (await thread.generate(request_id, steps, None, None, 0)).request_id  # type: ignore[arg-type]


async def test_requests_end_in_their_own_time_and_calls_run_between_steps() -> None:
    thread = start(FakeEngine())
    await thread.ready()
    ids = await asyncio.gather(*(generate(thread, str(steps), steps) for steps in (30, 1, 7)))
    assert ids == ["30", "1", "7"]
    assert await thread.call(lambda engine: threading.current_thread().name) == "vllm-engine"
    thread.stop()


async def test_errors_of_one_call_or_request_are_its_own() -> None:
    thread = start(FakeEngine())
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda engine: 1 // 0)
    with pytest.raises(ValueError, match="no steps"):
        await generate(thread, "a", None)
    assert await generate(thread, "b", 2) == "b"
    thread.stop()


async def test_cancelled_request_is_aborted_before_the_cancellation_returns() -> None:
    engine = FakeEngine()
    thread = start(engine)
    task = asyncio.create_task(generate(thread, "a", 10**9))
    while not await thread.call(lambda engine: engine.has_unfinished_requests()):
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.aborted == ["a-internal"]
    thread.stop()


async def test_broken_engine_fails_everyone_and_says_so() -> None:
    engine, broken = FakeEngine(), []
    thread = start(engine, broken)
    engine.paused.clear()
    waiting = asyncio.create_task(generate(thread, "a", 10**9))
    breaking = asyncio.create_task(generate(thread, "b", -1))
    await asyncio.sleep(0)
    engine.paused.set()
    for task in (waiting, breaking):
        with pytest.raises(EngineBroken, match="out of memory"):
            await task
    with pytest.raises(EngineBroken, match="out of memory"):
        await thread.call(lambda engine: None)
    thread.stop()
    assert [str(error) for error in broken] == ["out of memory"]


async def test_engine_that_cannot_be_built_says_why() -> None:
    def build() -> Any:
        raise OSError("no such model")

    thread = EngineThread(build, lambda error: None)
    thread.start()
    with pytest.raises(OSError, match="no such model"):
        await thread.ready()
    with pytest.raises(EngineBroken, match="no such model"):
        await thread.call(lambda engine: None)


async def test_stopping_fails_what_is_in_flight() -> None:
    thread = start(FakeEngine())
    task = asyncio.create_task(generate(thread, "a", 10**9))
    while not await thread.call(lambda engine: engine.has_unfinished_requests()):
        pass
    await asyncio.to_thread(thread.stop)
    with pytest.raises(EngineBroken, match="shut down"):
        await task
