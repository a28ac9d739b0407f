"""Admission to the rollout: within the budget, fair by tokens, nobody starved."""

import asyncio
import random
from collections import Counter

import pytest

from engine.scheduling.admission import Admission


class Load:
    """Requests that hold their claim until released, or for a number of turns of the loop."""

    def __init__(self, budget: int) -> None:
        self.admission = Admission(budget)
        self.tokens: Counter[str] = Counter()
        self.most = 0.0

    async def request(self, tenant: str, tokens: float, turns: int = 3, *, weight=1.0, priority=0, job="") -> None:
        async with self.admission.admit(
            tenant, job or tenant, weight=weight, priority=priority, tokens=tokens
        ) as grant:
            self.most = max(self.most, self.admission.granted)
            for _ in range(turns):
                await asyncio.sleep(0)
            grant.used = tokens
            self.tokens[job or tenant] += tokens

    async def keep_busy(self, tenant: str, tokens: float, rounds: list[int], at_once: int, **more) -> None:
        async def one() -> None:
            while rounds[0] > 0:
                rounds[0] -= 1
                await self.request(tenant, tokens, **more)

        await asyncio.gather(*(one() for _ in range(at_once)))


async def test_the_budget_is_never_exceeded():
    load = Load(100)
    rng = random.Random(0)
    await asyncio.gather(*(load.request(f"t{i % 5}", rng.randint(1, 60), rng.randint(1, 9)) for i in range(300)))
    assert 60 < load.most <= 100
    assert load.admission.granted == 0
    assert load.admission.depth == 0


async def test_a_request_larger_than_the_budget_is_served_alone():
    load = Load(100)
    await asyncio.gather(load.request("a", 30), load.request("b", 500), load.request("c", 30))
    assert load.most == 500
    assert load.tokens == {"a": 30, "b": 500, "c": 30}


@pytest.mark.parametrize(("weight", "share"), [(1, 0.5), (3, 0.75)])
async def test_tokens_not_requests_are_shared_by_weight(weight, share):
    load = Load(100)
    rounds = [2000]
    await asyncio.gather(load.keep_busy("long", 40, rounds, 8, weight=weight), load.keep_busy("short", 5, rounds, 40))
    assert load.tokens["long"] / load.tokens.total() == pytest.approx(share, abs=0.03)


async def test_a_long_request_is_not_starved_by_a_stream_of_short_ones():
    load = Load(100)
    rounds = [3000]
    stream = asyncio.create_task(load.keep_busy("short", 10, rounds, 30))
    for _ in range(50):
        await asyncio.sleep(0)
    before = rounds[0]
    await load.request("long", 95)
    served_meanwhile = before - rounds[0]
    assert served_meanwhile < 60
    rounds[0] = 0
    await stream


async def test_priority_orders_a_tenants_own_jobs_only():
    load = Load(10)
    order = []
    all_waiting = asyncio.Event()

    async def request(tenant: str, job: str, priority: int) -> None:
        async with load.admission.admit(tenant, job, weight=1, priority=priority, tokens=10):
            order.append(job)
            await all_waiting.wait()

    first = asyncio.create_task(request("z", "running", 0))
    await asyncio.sleep(0)
    rest = [
        asyncio.create_task(request("a", "a-low", -1)),
        asyncio.create_task(request("a", "a-high", 5)),
        asyncio.create_task(request("b", "b", 0)),
    ]
    await asyncio.sleep(0)
    all_waiting.set()
    await asyncio.gather(first, *rest)
    assert order.index("a-high") < order.index("a-low")
    assert order.index("b") < order.index("a-low")  # a's high priority takes nothing from b


async def test_a_cancelled_request_frees_its_place_and_its_tokens():
    load = Load(10)
    hold = asyncio.create_task(load.request("a", 10, turns=10**6))
    await asyncio.sleep(0)
    large = asyncio.create_task(load.request("b", 10))
    await asyncio.sleep(0)
    large.cancel()
    hold.cancel()
    await asyncio.gather(large, hold, return_exceptions=True)
    assert load.admission.granted == 0
    await asyncio.wait_for(load.request("c", 10), 5)


async def test_what_was_not_used_is_not_charged():
    admission = Admission(10)
    served = []

    async def request(tenant: str, used: float) -> None:
        async with admission.admit(tenant, tenant, weight=1, priority=0, tokens=10) as grant:
            await asyncio.sleep(0)
            grant.used = used
            served.append(tenant)

    async def stream(tenant: str, used: float, count: int) -> None:
        await asyncio.gather(*(request(tenant, used) for _ in range(count)))

    await asyncio.gather(stream("frugal", 1, 40), stream("full", 10, 40))
    assert Counter(served[:30])["frugal"] > 2 * Counter(served[:30])["full"]


async def test_a_larger_budget_admits_at_once_and_a_smaller_one_from_then_on():
    admission, admitted, leave = Admission(100), [], asyncio.Event()

    async def request(name: str) -> None:
        async with admission.admit(name, name, weight=1, priority=0, tokens=60):
            admitted.append(name)
            await leave.wait()

    tasks = [asyncio.create_task(request(name)) for name in "abcd"]
    await asyncio.sleep(0)
    assert admitted == ["a"]
    admission.resize(180)
    await asyncio.sleep(0)
    assert admitted == ["a", "b", "c"]
    admission.resize(60)
    leave.set()
    await asyncio.gather(*tasks)
    assert admitted == ["a", "b", "c", "d"] and admission.granted == 0
