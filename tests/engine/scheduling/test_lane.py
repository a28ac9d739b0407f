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


class Turns:
    """What a lane was given to work on together."""

    def __init__(self) -> None:
        self.turns: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def together(self, items):
        self.turns.append(list(items))
        await self.open.wait()
        return [ValueError(item) if item.startswith("bad") else item.upper() for item in items]


async def share_all(lane: Lane, turns: Turns, pieces, weight=1):
    """Results, in order, of pieces (tenant, item, size) that come while the lane is held."""
    turns.open.clear()
    held = asyncio.create_task(lane.share("z", "z", 1, "held", 1, turns.together))
    await asyncio.sleep(0)
    waiting = [
        asyncio.create_task(lane.share(tenant, item, weight, item, size, turns.together))
        for tenant, item, size in pieces
    ]
    await asyncio.sleep(0)
    turns.open.set()
    return (await asyncio.gather(held, *waiting, return_exceptions=True))[1:]


async def test_small_pieces_share_a_turn_up_to_its_capacity_and_each_gets_its_own_result():
    lane, turns = Lane(capacity=10), Turns()
    pieces = [("a", "a", 4), ("b", "bad b", 4), ("c", "c", 4), ("d", "d", 40), ("e", "e", 1)]
    results = await share_all(lane, turns, pieces)
    assert turns.turns == [["held"], ["a", "bad b"], ["c"], ["d"], ["e"]]  # what does not fit is not overtaken
    assert isinstance(results[1], ValueError) and [*results[:1], *results[2:]] == ["A", "C", "D", "E"]
    assert lane.depth == 0 and not lane.busy


async def test_a_piece_that_may_not_be_shared_has_a_turn_of_its_own():
    lane, turns = Lane(capacity=10), Turns()

    async def alone():
        turns.turns.append(["alone"])

    turns.open.clear()
    held = asyncio.create_task(lane.share("z", "z", 1, "held", 1, turns.together))
    await asyncio.sleep(0)
    tasks = [held, *(asyncio.create_task(lane.share(x, x, 1, x, 1, turns.together)) for x in "ab")]
    tasks.append(asyncio.create_task(lane.run("c", "c", 1, alone)))
    tasks.append(asyncio.create_task(lane.share("d", "d", 1, "d", 1, turns.together)))
    await asyncio.sleep(0)
    turns.open.set()
    await asyncio.gather(*tasks)
    assert turns.turns == [["held"], ["a", "b"], ["alone"], ["d"]]


async def test_a_turn_that_fails_as_a_whole_fails_every_piece_and_frees_the_lane():
    lane = Lane(capacity=10)

    async def lost(items):
        raise ConnectionError("the trainer is gone")

    results = await asyncio.gather(*(lane.share(x, x, 1, x, 1, lost) for x in "ab"), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionError, ConnectionError]
    assert not lane.busy and lane.depth == 0


async def test_a_result_too_few_fails_the_turn_and_frees_the_lane():
    lane = Lane(capacity=10)

    async def forgetful(items):
        return []

    with pytest.raises(RuntimeError, match="0 results came for 1 pieces"):
        await lane.share("a", "a", 1, "a", 1, forgetful)
    assert not lane.busy and lane.depth == 0


async def test_cancelling_one_of_a_turn_leaves_the_others_and_the_turn_alone():
    lane, turns = Lane(capacity=10), Turns()
    turns.open.clear()
    first, second = (asyncio.create_task(lane.share(x, x, 1, x, 1, turns.together)) for x in "ab")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns.turns == [["a"]]
    third = asyncio.create_task(lane.share("c", "c", 1, "c", 1, turns.together))
    await asyncio.sleep(0)
    second.cancel()  # it waits
    first.cancel()  # it is worked on: no other turn may begin before that is over
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns.turns == [["a"]] and lane.busy
    turns.open.set()
    assert await third == "C"
    assert turns.turns == [["a"], ["c"]] and lane.depth == 0


async def test_shared_turns_keep_the_shares():
    """A tenant of many jobs against one of a single job, two pieces a turn: half the time each, by size."""
    clock, served = Clock(), Counter()
    lane = Lane(clock, capacity=2)

    async def together(items):
        await asyncio.sleep(0)
        clock.now += len(items)
        served.update(items)
        return items

    async def keep_busy(tenant, job):
        while clock.now < 400:
            await lane.share(tenant, job, 1, tenant, 1, together)

    await asyncio.gather(*(keep_busy("many", f"m{index}") for index in range(7)), keep_busy("single", "s"))
    assert served["single"] == pytest.approx(served["many"], rel=0.05)
