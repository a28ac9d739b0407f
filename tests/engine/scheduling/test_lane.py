"""The trainer's lane: serialized, fair by time and weight, with a bounded wait."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from engine.scheduling.lane import Lane


class Clock:
    """Time that moves only when work says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Workload:
    """Jobs that always have another piece of work ready."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lane = Lane(self.clock)
        self.served: list[str] = []
        self.at_once = 0

    def piece(self, label: str, seconds: float):
        async def work() -> str:
            self.at_once += 1
            assert self.at_once == 1, "two pieces of work ran at once"
            await asyncio.sleep(0)
            self.clock.now += seconds
            self.served.append(label)
            self.at_once -= 1
            return label

        return work

    async def keep_busy(self, tenant: str, job: str, weight: float, seconds: float, until: float) -> None:
        while self.clock.now < until:
            await self.lane.run(tenant, job, weight, self.piece(job, seconds))


async def test_it_returns_the_result_and_passes_errors_through():
    lane = Lane()

    async def seven() -> int:
        return 7

    async def fails() -> None:
        raise ValueError("bad batch")

    assert await lane.run("a", "a1", 1, seven) == 7
    with pytest.raises(ValueError, match="bad batch"):
        await lane.run("a", "a1", 1, fails)
    assert await lane.run("b", "b1", 1, seven) == 7  # the lane is free again


async def test_one_piece_at_a_time_and_shares_follow_the_weights():
    load = Workload()
    await asyncio.gather(load.keep_busy("heavy", "h", 3, 1.0, 400), load.keep_busy("light", "l", 1, 1.0, 400))
    counts = Counter(load.served)
    assert counts["h"] / counts["l"] == pytest.approx(3, rel=0.02)


async def test_a_tenant_with_many_jobs_gets_no_more_than_one_with_a_single_job():
    load = Workload()
    many = [load.keep_busy("many", f"m{index}", 1, 1.0, 300) for index in range(9)]
    await asyncio.gather(*many, load.keep_busy("single", "s", 1, 1.0, 300))
    counts = Counter(load.served)
    assert counts["s"] == pytest.approx(150, abs=3)
    assert max(counts[f"m{i}"] for i in range(9)) - min(counts[f"m{i}"] for i in range(9)) <= 2


async def test_long_pieces_do_not_buy_a_larger_share():
    load = Workload()
    await asyncio.gather(load.keep_busy("long", "l", 1, 10.0, 2000), load.keep_busy("short", "s", 1, 1.0, 2000))
    counts = Counter(load.served)
    assert counts["l"] * 10 == pytest.approx(counts["s"], rel=0.05)


async def test_idling_earns_no_credit():
    load = Workload()
    await load.keep_busy("early", "e", 1, 1.0, 100)
    load.served.clear()
    await asyncio.gather(load.keep_busy("early", "e", 1, 1.0, 200), load.keep_busy("late", "l", 1, 1.0, 200))
    assert Counter(load.served)["e"] == pytest.approx(50, abs=3)


async def test_the_wait_is_bounded_by_one_piece_of_each_other_tenant():
    load = Workload()
    tenants = [f"t{index}" for index in range(8)]
    await asyncio.gather(*(load.keep_busy(tenant, tenant, 1, 1.0, 400) for tenant in tenants))
    for tenant in tenants:
        turns = [index for index, label in enumerate(load.served) if label == tenant]
        assert max(later - earlier for earlier, later in pairwise(turns)) <= len(tenants) + 1


async def test_a_cancelled_waiter_gives_up_its_place_and_blocks_nobody():
    lane = Lane()
    release = asyncio.Event()
    order = []

    def work(label):
        async def run():
            if label == "first":
                await release.wait()
            order.append(label)

        return run

    first = asyncio.create_task(lane.run("a", "a", 1, work("first")))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(lane.run("b", "b", 1, work("cancelled")))
    third = asyncio.create_task(lane.run("c", "c", 1, work("third")))
    await asyncio.sleep(0)
    waiting.cancel()
    release.set()
    await asyncio.gather(first, third)
    assert order == ["first", "third"]
    assert lane.depth == 0


async def test_a_waiter_cancelled_in_the_instant_of_its_turn_passes_it_on():
    lane = Lane()
    release = asyncio.Event()
    served = []

    async def hold():
        await release.wait()

    async def serve():
        served.append(True)

    first = asyncio.create_task(lane.run("a", "a", 1, hold))
    await asyncio.sleep(0)
    second = asyncio.create_task(lane.run("b", "b", 1, serve))
    third = asyncio.create_task(lane.run("c", "c", 1, serve))
    await asyncio.sleep(0)
    release.set()
    first.add_done_callback(lambda _: second.cancel())
    await asyncio.wait_for(third, 5)
    assert served
    assert lane.depth == 0


async def test_a_waiter_cancelled_while_the_work_before_it_is_cancelled_blocks_nobody():
    lane = Lane()

    async def forever():
        for _ in range(10**9):
            await asyncio.sleep(0)

    async def serve():
        return "served"

    running = asyncio.create_task(lane.run("a", "a", 1, forever))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(lane.run("b", "b", 1, serve))
    third = asyncio.create_task(lane.run("c", "c", 1, serve))
    await asyncio.sleep(0)
    waiting.cancel()
    running.cancel()
    assert await asyncio.wait_for(third, 5) == "served"
    assert lane.depth == 0
