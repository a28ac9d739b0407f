"""One listener in each process for all its streams.

The events worker says once a batch which jobs have news; the hub takes that in, wakes the streams concerned and, for
those that show a job or a list of jobs, reads what is new once and renders it once, however many sockets show it.

Invariants: a message only wakes, what is new is read from the table; a stream that cannot use a page (it is behind,
or wants what the page leaves out) reads for itself, so nothing is missed or doubled; a slow client holds up nobody and
costs at most ``MOST_WAITING`` pages; while nobody listens the hub holds no connection, to database or channel layer.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from portal.live.pages import JobPage, News, read_pages
from portal.live.wake import NEWS_GROUP, job_group, tenant_group

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

JOIN_SECONDS = 30.0
"""How often the hub says again that it listens: a channel layer that was restarted has forgotten it."""
PAUSE_SECONDS = 0.02
"""Between two reads, in which news gather."""
MOST_WAITING = 20


class Shown(Protocol):
    """A stream that takes pages."""

    def offer(self, page: Any) -> None:
        """Take a ``JobPage``, or the text for a list of jobs; must not wait."""

    wants_spans: bool


class Hub:
    """Of one event loop; see the module's docstring."""

    def __init__(self) -> None:
        self._waking: dict[str, set[Callable[[], None]]] = defaultdict(set)
        self._jobs: dict[uuid.UUID, set[Shown]] = defaultdict(set)
        self._lists: dict[uuid.UUID, set[Shown]] = defaultdict(set)
        self._read_to: dict[uuid.UUID, int] = {}
        """Last seq of each shown job that was read for all its streams."""
        self._woken: dict[uuid.UUID, uuid.UUID] = {}
        """Tenants of the jobs with news, by job."""
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._listening = asyncio.Event()

    # --- who listens ---

    async def wake_on(self, group: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` at news of a job or tenant (``job_group``, ``tenant_group``), from now on."""
        self._waking[group].add(wake)
        await self._start()

    async def show_job(self, job_id: uuid.UUID, stream: Shown) -> None:
        """Offer the stream every page of the job from now on."""
        self._jobs[job_id].add(stream)
        await self._start()

    async def show_list(self, tenant_id: uuid.UUID, stream: Shown) -> None:
        """Offer the stream the jobs of a tenant that change, from now on."""
        self._lists[tenant_id].add(stream)
        await self._start()

    async def leave(self, *, wake: Callable[[], None] | None = None, stream: Shown | None = None) -> None:
        """``wake`` is told nothing more, ``stream`` offered nothing more; the last to leave ends the hub's work."""
        _drop(self._waking, wake)
        _drop(self._jobs, stream)
        _drop(self._lists, stream)
        for job_id in self._read_to.keys() - self._jobs.keys():
            del self._read_to[job_id]
        if not (self._waking or self._jobs or self._lists):
            tasks, self._tasks = self._tasks, []
            self._listening.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self) -> None:
        """Returns once what happens will be heard of, or the channel layer cannot be reached."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._read())]
        await self._listening.wait()

    # --- what is heard ---

    async def _listen(self) -> None:
        while True:
            layer: Any = get_channel_layer()
            try:
                channel = await layer.new_channel()
                try:
                    while True:
                        await layer.group_add(NEWS_GROUP, channel)
                        self._listening.set()
                        await self._take_messages(layer, channel)
                finally:
                    await layer.group_discard(NEWS_GROUP, channel)
            except (RedisError, OSError) as error:
                logger.warning("The channel layer cannot be reached, streams are not woken: %s", error)
            except Exception:
                logger.exception("What the channel layer said was not understood; listening anew")
            self._listening.set()
            await asyncio.sleep(1)

    async def _take_messages(self, layer: Any, channel: str) -> None:
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                while True:
                    message = await layer.receive(channel)
                    self._wake([(uuid.UUID(job), uuid.UUID(tenant)) for job, tenant in message["jobs"]])
        except TimeoutError:
            return

    def _wake(self, jobs: list[tuple[uuid.UUID, uuid.UUID]]) -> None:
        for job_id, tenant_id in jobs:
            for group in (job_group(job_id), tenant_group(tenant_id)):
                for wake in self._waking.get(group, ()):
                    wake()
            if job_id in self._jobs or tenant_id in self._lists:
                self._woken[job_id] = tenant_id
                self._news.set()

    # --- what is read ---

    async def _read(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            woken, self._woken = self._woken, {}
            try:
                await self._read_news(woken)
            except Exception:  # streams look for themselves at their next refresh
                logger.exception("News of %d job(s) could not be read", len(woken))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read_news(self, woken: dict[uuid.UUID, uuid.UUID]) -> None:
        shown = {job_id: self._read_to.get(job_id) for job_id in woken if job_id in self._jobs}
        spans = {job_id for job_id in shown if any(one.wants_spans for one in self._jobs[job_id])}
        news: News = await database_sync_to_async(read_pages, thread_sensitive=False)(list(woken), shown, spans)
        for job_id, page in news.pages.items():
            self._offer(job_id, page)
            if page.more:
                self._woken[job_id] = woken[job_id]
                self._news.set()
        for tenant_id, text in news.lists.items():
            for stream in self._lists.get(tenant_id, ()):
                stream.offer(text)

    def _offer(self, job_id: uuid.UUID, page: JobPage) -> None:
        if job_id in self._jobs:
            self._read_to[job_id] = page.last_seq
            for stream in self._jobs[job_id]:
                stream.offer(page)


def _drop(members: dict[K, set[V]], gone: V | None) -> None:
    for name in [name for name, joined in members.items() if gone in joined]:
        members[name].remove(gone)  # type: ignore[arg-type]
        if not members[name]:
            del members[name]


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def get_hub() -> Hub:
    """The hub of the running loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())
