"""The workers of a pool on a real Ray, with actors that answer without a model: who serves what, and when."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray

from engine.actors import LostActor, StartFailed
from engine.rollout.adapter_files import AdapterError
from engine.rollout.workers import Published, PublishError, RolloutWorkers
from engine.types import BASE, AdapterRef, Completion, RolloutRequest

pytestmark = pytest.mark.engine

TOLERANCE = 0.01
PROBE = [1, 2, 3]
TRAINED = [-1.0, -2.0]


class Drawer:
    """Says who it is and which adapters it has. The files in ``folder`` tell it what to do: ``slow`` to wait with its
    answers, ``wrong`` to serve weights of its own, ``broken-<n>`` to refuse version n, ``dies`` not to start."""

    def __init__(self, folder: Path) -> None:
        if (folder / "dies").exists():
            raise ValueError("no such model")
        self.folder = folder
        self.adapters: list[int] = []
        with (folder / "starts").open("a") as file:
            file.write(f"{os.getpid()}\n")

    async def _while(self, name: str) -> None:
        while (self.folder / name).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def start(self) -> None:
        await self._while("slow-start")

    async def stats(self) -> dict[str, Any]:
        return {"kv_capacity_tokens": 100, "node": "here"}

    async def load_adapter(self, ref: AdapterRef) -> None:
        await self._while("slow-load")
        if (self.folder / f"broken-{ref.version}").exists():
            raise AdapterError(f"version {ref.version} is damaged")
        self.adapters.append(ref.version)

    async def remove_adapter(self, ref: AdapterRef) -> None:
        if ref.version in self.adapters:
            self.adapters.remove(ref.version)

    async def score(self, ref: AdapterRef, ids: list[int]) -> list[float]:
        return [-9.0, -9.0] if (self.folder / "wrong").exists() else TRAINED

    async def generate(self, request: RolloutRequest) -> list[Completion]:
        (self.folder / "drawing").touch()
        await self._while("slow")
        said = f"{os.getpid()} {sorted(self.adapters)}"
        return [Completion([request.seed], [-1.0], said, "stop", request.policy.name)]


@pytest.fixture(scope="module", autouse=True)
def a_ray() -> Iterator[None]:
    ray.init(
        address="local", include_dashboard=False, log_to_driver=False, num_cpus=2, object_store_memory=100 * 2**20,
        _temp_dir=f"/tmp/marlaas-workers-{os.getpid()}",
    )  # fmt: skip
    yield
    ray.shutdown()


class Pool:
    """The workers and what they have told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.budget = 0
        remote = ray.remote(Drawer).options(num_cpus=0, max_concurrency=100)
        self.workers = RolloutWorkers(lambda: remote.remote(folder), TOLERANCE, self._resized)

    def _resized(self, budget: int) -> None:
        self.budget = budget

    def set(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def unset(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink()

    def starts(self) -> list[int]:
        return [int(line) for line in (self.folder / "starts").read_text().splitlines()]

    def states(self) -> list[str]:
        return [worker["state"] for worker in self.workers.describe()]

    async def publish(self, version: int) -> AdapterRef:
        ref = AdapterRef("a" * 32, version, 100 + version, f"/{version}", "0" * 64)
        await self.workers.publish(Published(ref, PROBE, TRAINED))
        return ref

    async def draw(self, seed: int = 1) -> Completion:
        request = RolloutRequest(BASE, [1], 1, 1, 1.0, seed, "job")
        (completion,) = await self.workers.generate(request, 10)
        return completion

    async def serving(self, count: int) -> None:
        await until(lambda: self.states() == ["serving"] * count)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest_asyncio.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    pool = Pool(tmp_path)
    yield pool
    pool.workers.stop()


async def test_a_worker_that_joins_has_every_published_version_before_it_serves(pool: Pool):
    await pool.workers.start(1)
    old, _ = await pool.publish(1), await pool.publish(2)
    pool.set("slow-load")
    pool.workers.scale(2)
    await until(lambda: len(pool.starts()) == 2)
    assert pool.states() == ["serving", "starting"]
    assert (await pool.draw()).worker == "rollout-0"
    # What happens meanwhile counts for it too: one version more, one less.
    third = asyncio.create_task(pool.publish(3))
    retired = asyncio.create_task(pool.workers.retire(old))
    await asyncio.sleep(0.1)
    assert not third.done()
    pool.unset("slow-load")
    await asyncio.gather(third, retired)
    await pool.serving(2)
    assert pool.budget == 200
    pool.set("slow")
    drawing = [asyncio.create_task(pool.draw()) for _ in range(2)]
    await asyncio.sleep(0.3)
    pool.unset("slow")
    drawn = {completion.worker: completion.text.split(" ", 1)[1] for completion in await asyncio.gather(*drawing)}
    assert drawn == {"rollout-0": "[2, 3]", "rollout-1": "[2, 3]"}


async def test_a_version_that_one_worker_does_not_serve_as_trained_is_published_nowhere(pool: Pool):
    await pool.workers.start(1)
    await pool.publish(1)
    pool.set("wrong")
    with pytest.raises(PublishError, match=r"rollout worker 0 does not serve job-a+@v2 as trained.*differ by 7\.500"):
        await pool.publish(2)
    pool.unset("wrong")
    pool.workers.scale(2)
    await pool.serving(2)
    os.kill(pool.starts()[0], signal.SIGKILL)
    assert {(await pool.draw()).text.split(" ", 1)[1] for _ in range(4)} == {"[1]"}


async def test_a_worker_that_joins_with_other_weights_does_not_serve(pool: Pool):
    await pool.workers.start(1)
    await pool.publish(1)
    pool.set("wrong")
    pool.workers.scale(2)
    await until(lambda: len(pool.starts()) >= 3)  # it was given another try
    assert pool.states() == ["serving", "starting"]
    assert "does not serve" in pool.workers.describe()[1]["trouble"]
    pool.unset("wrong")
    await pool.serving(2)


async def test_one_damaged_version_does_not_keep_a_worker_from_serving_the_others(pool: Pool):
    await pool.workers.start(1)
    for version in (1, 2):
        await pool.publish(version)
    pool.set("broken-1")
    pool.workers.scale(2)
    await pool.serving(2)


async def test_a_request_goes_on_elsewhere_when_its_worker_dies_and_the_place_is_filled(pool: Pool):
    await pool.workers.start(2)
    await pool.serving(2)
    pool.set("slow")
    drawing = [asyncio.create_task(pool.draw(seed)) for seed in range(4)]
    await until(lambda: sum(worker["requests"] for worker in pool.workers.describe()) == 4)
    os.kill(pool.starts()[1], signal.SIGKILL)
    await until(lambda: len(pool.starts()) == 3)
    pool.unset("slow")
    completions = await asyncio.gather(*drawing)
    assert [completion.token_ids for completion in completions] == [[0], [1], [2], [3]]
    await pool.serving(2)
    assert pool.budget == 200


async def test_a_worker_taken_away_ends_what_it_has_begun(pool: Pool):
    await pool.workers.start(2)
    await pool.serving(2)
    pool.set("slow")
    drawing = [asyncio.create_task(pool.draw(seed)) for seed in range(4)]
    await until(lambda: [worker["requests"] for worker in pool.workers.describe()] == [2, 2])
    pool.workers.scale(1)
    assert pool.states() == ["serving"] and pool.budget == 100
    more = asyncio.create_task(pool.draw(9))
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in drawing)
    pool.unset("slow")
    assert sorted(completion.worker for completion in await asyncio.gather(*drawing)) == [
        "rollout-0", "rollout-0", "rollout-1", "rollout-1",
    ]  # fmt: skip
    assert (await more).worker == "rollout-0"
    assert len(pool.starts()) == 2


async def test_all_workers_lost_at_once_come_back_with_their_versions(pool: Pool):
    await pool.workers.start(2)
    await pool.serving(2)
    await pool.publish(1)
    for pid in pool.starts():
        os.kill(pid, signal.SIGKILL)
    await pool.publish(2)
    assert (await pool.draw()).text.endswith("[1, 2]")


async def test_where_no_worker_can_start_the_reason_is_said_at_once(pool: Pool):
    pool.set("dies")
    with pytest.raises(StartFailed, match="the rollout worker 0 does not start: ValueError: no such model"):
        await pool.workers.start(1)
    with pytest.raises(LostActor, match="no such model"):
        await pool.draw()


async def test_the_first_worker_that_serves_is_enough_to_begin(pool: Pool):
    await pool.workers.start(1)
    pool.set("dies")
    pool.workers.scale(2)
    await until(lambda: "no such model" in pool.workers.describe()[1]["trouble"])
    assert (await pool.draw()).worker == "rollout-0"
