"""Who may use an adapter slot, and which adapters stay resident. Knows nothing of vLLM.

Invariants:
- an adapter in use is never unloaded, and never more than ``slots`` adapters are in use at once;
- an adapter that waits for a slot waits only for requests admitted before it: as soon as it waits, the adapter that
  has held its slot longest takes no further requests until it has given the slot up. So more adapters than slots are
  all served, whatever arrives;
- loads and unloads do not wait for one another, but what is resident or on its way in or out is never more than
  ``capacity``;
- an id names one adapter version for good, and a version has one digest for good: a reused one is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from engine.types import AdapterRef

logger = logging.getLogger(__name__)


class AdapterSlots:
    """Reference-counted slots over an LRU of resident adapters. Use from one event loop only."""

    def __init__(
        self,
        slots: int,
        load: Callable[[AdapterRef], Awaitable[None]],
        unload: Callable[[AdapterRef], Awaitable[None]],
    ) -> None:
        """``slots`` adapters may be in use at once; twice as many stay resident, so that a new version can be loaded
        while every slot is in use. ``load`` raises where the adapter cannot be served."""
        self.slots = slots
        self.capacity = 2 * slots
        self._load = load
        self._unload = unload
        self._resident: OrderedDict[int, AdapterRef] = OrderedDict()  # least recently used first
        self._in_use: OrderedDict[int, int] = OrderedDict()  # references by id, longest holder first
        self._held: dict[int, AdapterRef] = {}  # the adapters in use
        self._draining: set[int] = set()
        self._waiting: deque[tuple[AdapterRef, asyncio.Future[None]]] = deque()
        self._arriving: dict[int, asyncio.Task[None]] = {}  # of those in _resident, the ones still being loaded
        self._leaving: dict[int, asyncio.Task[None]] = {}  # being unloaded, and not in _resident any more
        self._removals: dict[int, list[asyncio.Future[None]]] = {}  # who waits for an id to fall out of use
        self._identity: dict[int, tuple[str, str]] = {}  # id -> (name, sha256)
        self._digest: dict[str, str] = {}  # name -> sha256

    @property
    def resident(self) -> list[str]:
        """Names of the adapters the engine holds."""
        return [ref.name for ref in self._resident.values()]

    @property
    def in_use(self) -> dict[str, int]:
        """Requests in flight by adapter name."""
        return {self._held[lora_id].name: count for lora_id, count in self._in_use.items()}

    @asynccontextmanager
    async def use(self, ref: AdapterRef) -> AsyncIterator[None]:
        """Hold the adapter resident for the duration; waits for a slot, loads on demand."""
        await self._acquire(ref)
        try:
            await self._ensure_resident(ref)
            yield
        finally:
            self._release(ref)

    async def load(self, ref: AdapterRef) -> None:
        """Make the adapter resident. It may be evicted later and is then loaded again on demand."""
        await self._ensure_resident(ref)

    async def remove(self, ref: AdapterRef) -> None:
        """Unload the adapter once no request uses it; returns when it is gone. Idempotent."""
        self._check_identity(ref)
        lora_id = ref.lora_id
        while lora_id in self._in_use or lora_id in self._arriving:
            if lora_id in self._in_use:
                unused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._removals.setdefault(lora_id, []).append(unused)
                await unused
            else:
                await asyncio.wait([self._arriving[lora_id]])
        if lora_id in self._resident:
            self._begin_unload(ref)
        if lora_id in self._leaving:
            await asyncio.shield(self._leaving[lora_id])

    def _check_identity(self, ref: AdapterRef) -> None:
        name, digest = self._identity.get(ref.lora_id, (ref.name, ref.sha256))
        if (name, digest) != (ref.name, ref.sha256):
            raise ValueError(f"adapter id {ref.lora_id} belongs to {name}: {ref.name} needs one of its own")
        if self._digest.get(ref.name, ref.sha256) != ref.sha256:
            raise ValueError(f"adapter {ref.name} comes with another digest than before: a version never changes")

    async def _acquire(self, ref: AdapterRef) -> None:
        if self._may_enter(ref.lora_id):
            self._enter(ref)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ref, granted))
        self._drain_for_waiting()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting = deque(entry for entry in self._waiting if entry[1] is not granted)
                self._settle()
            else:
                self._release(ref)
            raise

    def _may_enter(self, lora_id: int) -> bool:
        if lora_id in self._in_use:
            return lora_id not in self._draining
        return not self._waiting and len(self._in_use) < self.slots

    def _enter(self, ref: AdapterRef) -> None:
        self._in_use[ref.lora_id] = self._in_use.get(ref.lora_id, 0) + 1
        self._held[ref.lora_id] = ref

    def _release(self, ref: AdapterRef) -> None:
        self._in_use[ref.lora_id] -= 1
        if self._in_use[ref.lora_id] == 0:
            del self._in_use[ref.lora_id], self._held[ref.lora_id]
            self._draining.discard(ref.lora_id)
            self._settle()
        if ref.lora_id not in self._in_use:
            for unused in self._removals.pop(ref.lora_id, ()):
                if not unused.done():
                    unused.set_result(None)

    def _settle(self) -> None:
        """Hand free slots to those who waited longest, then drain for the rest."""
        while self._waiting:
            lora_id = self._waiting[0][0].lora_id
            needs_slot = any(ref.lora_id not in self._in_use for ref, _ in self._waiting)
            if needs_slot and len(self._in_use) >= self.slots:
                break
            for entry in [entry for entry in self._waiting if entry[0].lora_id == lora_id]:
                self._waiting.remove(entry)
                if not entry[1].cancelled():
                    self._enter(entry[0])
                    entry[1].set_result(None)
        self._drain_for_waiting()

    def _drain_for_waiting(self) -> None:
        """As many slots drain as adapters wait, the longest holders first."""
        wanted = len({ref.lora_id for ref, _ in self._waiting})
        if wanted == 0:
            self._draining.clear()
        for lora_id in self._in_use:
            if len(self._draining) >= wanted:
                break
            self._draining.add(lora_id)

    async def _ensure_resident(self, ref: AdapterRef) -> None:
        # Shielded: what the engine holds and what is recorded here must not differ because a caller went away.
        await asyncio.shield(self._make_resident(ref))

    async def _make_resident(self, ref: AdapterRef) -> None:
        lora_id = ref.lora_id
        while True:
            self._check_identity(ref)
            if lora_id in self._resident:
                self._resident.move_to_end(lora_id)
                break
            if lora_id in self._leaving:
                await asyncio.wait([self._leaving[lora_id]])
                continue
            if len(self._resident) + len(self._leaving) < self.capacity:
                self._begin_load(ref)
                break
            busy = self._in_use.keys() | self._arriving.keys()
            idle = next((one for one in self._resident.values() if one.lora_id not in busy), None)
            if idle is not None:
                self._begin_unload(idle)
            changes = [*self._arriving.values(), *self._leaving.values()]
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        if lora_id in self._arriving:
            await self._arriving[lora_id]

    def _begin_load(self, ref: AdapterRef) -> None:
        lora_id = ref.lora_id
        new_id, new_name = lora_id not in self._identity, ref.name not in self._digest
        self._resident[lora_id] = ref
        self._identity[lora_id] = (ref.name, ref.sha256)
        self._digest[ref.name] = ref.sha256
        task = self._arriving[lora_id] = asyncio.ensure_future(self._load(ref))

        def ended(task: asyncio.Task[None]) -> None:
            del self._arriving[lora_id]
            if task.cancelled() or task.exception() is not None:
                del self._resident[lora_id]
                if new_id:
                    del self._identity[lora_id]
                if new_name:
                    del self._digest[ref.name]

        task.add_done_callback(ended)

    def _begin_unload(self, ref: AdapterRef) -> None:
        del self._resident[ref.lora_id]
        task = self._leaving[ref.lora_id] = asyncio.ensure_future(self._unload(ref))

        def ended(task: asyncio.Task[None]) -> None:
            del self._leaving[ref.lora_id]
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("adapter %s could not be unloaded", ref.name, exc_info=error)

        task.add_done_callback(ended)
