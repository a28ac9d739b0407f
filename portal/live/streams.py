"""Server-sent events: what a reader finds, as it comes, until the stream's time is over.

Invariants: messages of the channel layer only wake, what is new is read from the table; a waiting stream holds no
database connection; before anything is sent it is checked that the token still may read, so a revoked one gets nothing
more and is told so at the next heartbeat at the latest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from channels.db import database_sync_to_async
from django.http import Http404

from portal.live.hub import get_hub
from portal.live.readers import Batch, Message

HEARTBEAT_SECONDS = 15.0
RETRY_MS = 1000
"""After a cut, clients that know server-sent events come back after so long."""


class Reader(Protocol):
    """What a stream is made of."""

    group: str
    """What the hub wakes it by."""

    def read(self) -> Batch: ...


async def stream_events(reader: Reader, *, may_read: Callable[[], bool], seconds: float) -> AsyncIterator[bytes]:
    """The body of a ``text/event-stream``. The last event is ``end`` and says why."""
    clock = asyncio.get_running_loop()
    ends_at = clock.time() + seconds
    waking = Waking(reader.group)
    await waking.start()  # before reading: what happens in between wakes us
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        while True:
            batch = await database_sync_to_async(_read)(reader, may_read)
            if batch is None:
                yield _end("revoked", "The API token may not read this any longer.")
                return
            for message in batch.messages:
                yield render(message)
            if batch.finished:
                yield _end("finished", "The job has ended, no event follows.")
                return
            if batch.more:
                continue
            left = ends_at - clock.time()
            if left <= 0:
                yield _end("time", "Connect again with the last id.")
                return
            if not await waking.wait(min(HEARTBEAT_SECONDS, left)):
                yield b": nothing new\n\n"
    finally:
        await waking.stop()


def _read(reader: Reader, may_read: Callable[[], bool]) -> Batch | None:
    """None where the reader may not read, or what it reads is gone."""
    try:
        return reader.read() if may_read() else None
    except Http404:
        return None


def render(message: Message) -> bytes:
    data = json.dumps(message.data, separators=(",", ":"))
    return f"id: {message.id}\nevent: {message.event}\ndata: {data}\n\n".encode()


def _end(reason: str, text: str) -> bytes:
    return f"event: end\ndata: {json.dumps({'reason': reason, 'message': text})}\n\n".encode()


class Waking:
    """Woken by news of a job or tenant; where they do not arrive, waiting takes its whole time and finds news late."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.news = asyncio.Event()

    async def start(self) -> None:
        await get_hub().wake_on(self.group, self.news.set)

    async def wait(self, seconds: float) -> bool:
        """Whether something woke us within ``seconds``."""
        try:
            await asyncio.wait_for(self.news.wait(), seconds)
        except TimeoutError:
            return False
        self.news.clear()
        return True

    async def stop(self) -> None:
        await get_hub().leave(wake=self.news.set)
