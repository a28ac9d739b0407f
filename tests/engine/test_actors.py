"""Actors that come back, on a real Ray: deaths while starting, cancelled callers, calls that only free memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from engine.actors import RestartingActor, StartFailed

pytestmark = pytest.mark.engine


class Fragile:
    """Dies by SIGKILL in its first ``deaths`` starts; each start leaves a line in ``log``."""

    def __init__(self, log: Path, deaths: int = 0, error: str = "") -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if len(log.read_text().splitlines()) <= deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        if error:
            raise ValueError(error)
        self.cancelled = False

    async def cancelled_once(self) -> str:
        if not self.cancelled:
            self.cancelled = True
            raise ray.exceptions.TaskCancelledError
        return "done"

    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"


@pytest.fixture(scope="module", autouse=True)
def a_ray() -> Iterator[None]:
    ray.init(
        address="local", include_dashboard=False, log_to_driver=False, num_cpus=2, object_store_memory=100 * 2**20,
        _temp_dir=f"/tmp/marlaas-test-{os.getpid()}",
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "starts"


def actor(log: Path, **arguments) -> RestartingActor:
    remote = ray.remote(Fragile).options(num_cpus=0)
    return RestartingActor(
        "fragile worker", lambda: remote.remote(log, **arguments), lambda handle: handle.wait.remote(0.2)
    )


def starts(log: Path) -> int:
    return len(log.read_text().splitlines())


async def test_a_process_killed_while_it_starts_is_started_again(log):
    fragile = actor(log, deaths=2)
    await fragile.start()
    assert await fragile.call("wait", 0) == "waited"
    assert starts(log) == 3
    fragile.stop()


async def test_an_error_of_its_own_ends_the_start_at_once(log):
    fragile = actor(log, error="no such model")
    with pytest.raises(StartFailed, match="the fragile worker does not start: ValueError: no such model"):
        await fragile.start()
    assert starts(log) == 1


async def test_a_caller_that_goes_away_does_not_end_the_start_others_wait_for(log):
    fragile = actor(log)
    first = asyncio.create_task(fragile.call("wait", 0))
    second = asyncio.create_task(fragile.call("wait", 0))
    await asyncio.sleep(0.05)
    first.cancel()
    assert await second == "waited"
    assert starts(log) == 1
    fragile.stop()


async def test_a_dead_actor_is_not_started_only_to_free_memory(log):
    fragile = actor(log)
    await fragile.release("wait", 0)
    assert not log.exists()
    await fragile.start()
    os.kill(int(log.read_text()), signal.SIGKILL)
    await fragile.release("wait", 60)
    assert starts(log) == 1
    assert await fragile.call("wait", 0) == "waited"
    assert starts(log) == 2
    fragile.stop()


async def test_a_call_that_is_cancelled_with_another_is_made_again_in_the_same_actor(log):
    fragile = actor(log)
    assert await fragile.call("cancelled_once") == "done"
    assert starts(log) == 1
    fragile.stop()
