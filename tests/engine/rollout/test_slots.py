"""Slots and residency of adapters, without an engine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from engine.rollout.slots import AdapterSlots
from engine.types import AdapterRef


def adapter(lora_id: int, *, job: str = "", version: int = 1, sha256: str = "") -> AdapterRef:
    return AdapterRef(job or f"{lora_id:032x}", version, lora_id, f"/store/{lora_id}", sha256 or f"{lora_id:064x}")


class Engine:
    """Records what is loaded; refuses to unload what is in use and to hold more than it can."""

    def __init__(self, slots: int) -> None:
        self.slots = AdapterSlots(slots, self.load, self.unload)
        self.loaded: set[int] = set()
        self.loads: list[int] = []

    async def load(self, ref: AdapterRef) -> None:
        await asyncio.sleep(0)
        if ref.version == 666:
            raise ValueError("broken")
        self.loaded.add(ref.lora_id)
        self.loads.append(ref.lora_id)
        assert len(self.loaded) <= self.slots.capacity

    async def unload(self, ref: AdapterRef) -> None:
        assert ref.name not in self.slots.in_use
        await asyncio.sleep(0)
        self.loaded.remove(ref.lora_id)

    @asynccontextmanager
    async def using(self, ref: AdapterRef):
        async with self.slots.use(ref):
            assert ref.lora_id in self.loaded
            assert len(self.slots.in_use) <= self.slots.slots
            yield


class Request:
    """A request that is in flight until ``end`` is called."""

    def __init__(self, engine: Engine, ref: AdapterRef) -> None:
        self._end = asyncio.Event()
        self.running = False
        self.task = asyncio.create_task(self._run(engine, ref))

    async def _run(self, engine: Engine, ref: AdapterRef) -> None:
        async with engine.using(ref):
            self.running = True
            await self._end.wait()
        self.running = False

    async def end(self) -> None:
        self._end.set()
        await self.task


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_more_adapters_than_slots_are_all_served() -> None:
    engine = Engine(2)
    refs = [adapter(i) for i in range(1, 8)]

    async def one(ref: AdapterRef) -> None:
        async with engine.using(ref):
            await asyncio.sleep(0)

    await asyncio.gather(*(one(ref) for ref in refs * 20))
    assert set(engine.loads) == {ref.lora_id for ref in refs}
    assert engine.slots.in_use == {}


async def test_waiting_adapter_is_not_overtaken_for_ever() -> None:
    engine = Engine(1)
    first, second = adapter(1), adapter(2)
    running = Request(engine, first)
    await settle()
    waiting = Request(engine, second)
    await settle()
    late = Request(engine, first)  # may not join: the slot is to be given up
    await settle()
    assert (running.running, waiting.running, late.running) == (True, False, False)
    await running.end()
    await settle()
    assert (waiting.running, late.running) == (True, False)
    await waiting.end()
    await settle()
    assert late.running
    await late.end()


async def test_requests_share_a_slot_while_nobody_waits() -> None:
    engine = Engine(1)
    requests = [Request(engine, adapter(1)) for _ in range(3)]
    await settle()
    assert all(request.running for request in requests)
    assert engine.slots.in_use == {adapter(1).name: 3}
    assert engine.loads == [1]
    for request in requests:
        await request.end()


async def test_new_version_loads_while_the_only_slot_is_in_use() -> None:
    engine = Engine(1)
    old, new = adapter(1, job="a" * 32, version=1), adapter(2, job="a" * 32, version=2)
    running = Request(engine, old)
    await settle()
    await engine.slots.load(new)
    removal = asyncio.create_task(engine.slots.remove(old))
    await settle()
    assert engine.slots.resident == [old.name, new.name]
    assert not removal.done()
    await running.end()
    await removal
    assert engine.slots.resident == [new.name]


async def test_idle_adapters_are_evicted_longest_unused_first_and_reloaded() -> None:
    engine = Engine(2)  # four stay resident
    for lora_id in (1, 2, 3, 4):
        await engine.slots.load(adapter(lora_id))
    busy = Request(engine, adapter(1))
    await settle()
    await engine.slots.load(adapter(5))
    assert engine.loaded == {1, 3, 4, 5}
    async with engine.using(adapter(2)):
        assert engine.loaded == {1, 2, 4, 5}
    await busy.end()


async def test_cancelled_waiter_leaves_no_trace() -> None:
    engine = Engine(1)
    running = Request(engine, adapter(1))
    await settle()
    waiting = Request(engine, adapter(2))
    await settle()
    waiting.task.cancel()
    await settle()
    joining = Request(engine, adapter(1))  # nobody waits any more
    await settle()
    assert joining.running
    await running.end()
    await joining.end()
    assert engine.slots.in_use == {}
    async with engine.using(adapter(3)):
        pass


async def test_waiter_cancelled_just_as_its_slot_comes_free() -> None:
    for cancel_first in (True, False):
        engine = Engine(1)
        running = Request(engine, adapter(1))
        await settle()
        waiting = Request(engine, adapter(2))
        await settle()
        if cancel_first:
            waiting.task.cancel()
            await running.end()
        else:
            await running.end()
            waiting.task.cancel()
        await settle()
        assert waiting.task.cancelled()
        assert engine.slots.in_use == {}
        async with engine.using(adapter(3)):
            pass


async def test_failed_load_frees_the_slot() -> None:
    engine = Engine(1)
    with pytest.raises(ValueError, match="broken"):
        async with engine.using(adapter(1, version=666)):
            pass
    async with engine.using(adapter(2)):
        pass
    assert engine.slots.resident == [adapter(2).name]


async def test_ids_and_versions_are_never_reused() -> None:
    engine = Engine(1)
    await engine.slots.load(adapter(1, job="a" * 32))
    with pytest.raises(ValueError, match="belongs to"):
        await engine.slots.load(adapter(1, job="b" * 32))
    with pytest.raises(ValueError, match="a version never changes"):
        await engine.slots.load(adapter(2, job="a" * 32, sha256="f" * 64))
    await engine.slots.load(adapter(3, job="a" * 32, sha256=f"{1:064x}"))  # the same version under a new id


class SlowEngine(Engine):
    """Its loads and unloads take until ``step``."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._steps: list[asyncio.Event] = []
        self.at_once = 0

    async def load(self, ref: AdapterRef) -> None:
        await self._wait()
        await super().load(ref)

    async def unload(self, ref: AdapterRef) -> None:
        await self._wait()
        await super().unload(ref)

    async def _wait(self) -> None:
        self._steps.append(asyncio.Event())
        await self._steps[-1].wait()

    async def step(self) -> None:
        """Ends the calls that wait now."""
        await settle()
        steps, self._steps = self._steps, []
        self.at_once = max(self.at_once, len(steps))
        for one in steps:
            one.set()
        await settle()


async def test_loads_and_unloads_share_a_step_of_the_engine() -> None:
    engine = SlowEngine(slots=4)
    loads = [asyncio.create_task(engine.slots.load(adapter(n))) for n in range(1, 6)]
    await engine.step()
    assert all(load.done() for load in loads)
    both = [asyncio.create_task(engine.slots.remove(adapter(n))) for n in range(1, 4)]
    both += [asyncio.create_task(engine.slots.load(adapter(n))) for n in range(6, 8)]
    await engine.step()
    assert all(call.done() for call in both)
    assert engine.loaded == {4, 5, 6, 7}


async def test_a_load_waits_for_room_among_those_on_their_way() -> None:
    engine = SlowEngine(slots=1)
    loads = [asyncio.create_task(engine.slots.load(adapter(n))) for n in range(1, 5)]
    for _ in range(6):
        await engine.step()
    assert all(load.done() for load in loads)
    assert engine.at_once <= engine.slots.capacity
    assert len(engine.loaded) == 2
    await asyncio.gather(*loads)


async def test_what_leaves_can_come_again() -> None:
    engine = SlowEngine(slots=1)
    load = asyncio.create_task(engine.slots.load(adapter(1)))
    await engine.step()
    remove = asyncio.create_task(engine.slots.remove(adapter(1)))
    again = asyncio.create_task(engine.slots.load(adapter(1)))
    await engine.step()
    assert (remove.done(), again.done()) == (True, False)
    await engine.step()
    await asyncio.gather(load, remove, again)
    assert engine.loads == [1, 1]
    assert engine.slots.resident == [adapter(1).name]


async def test_removing_waits_for_a_load_that_is_under_way() -> None:
    engine = SlowEngine(slots=1)
    load = asyncio.create_task(engine.slots.load(adapter(1)))
    await settle()
    remove = asyncio.create_task(engine.slots.remove(adapter(1)))
    for _ in range(2):
        await engine.step()
    await asyncio.gather(load, remove)
    assert engine.loaded == set()
