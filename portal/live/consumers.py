"""Live updates over WebSockets.

Invariants: a client gets every event after the seq it names, in order, each once, whatever wake-ups come or are lost:
messages of the channel layer carry no content, what is new is read from the table; a waiting socket holds no database
connection; whoever signs out or leaves the tenant is cut off at the next refresh; a socket is never silent for longer
than a refresh takes to come round, so that a client can tell a dead network from a quiet job.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.http import Http404

from portal.errors import TooMany
from portal.jobs.selectors import get_job, list_jobs, read_news, summarize_job
from portal.live.hub import MOST_WAITING, get_hub
from portal.live.pages import JobPage
from portal.live.slots import Places, places_of_member
from portal.tenants.acting import get_acting_membership, may_still_read
from portal.tenants.models import Tenant

CLOSE_SIGNED_OUT = 4401
CLOSE_NOT_FOUND = 4404
CLOSE_TOO_MANY = 4429
LONGEST_REASON = 123
"""Bytes of a close frame's reason (RFC 6455)."""
PAGE_EVENTS = 200
LISTED_JOBS = 100
REFRESH_SECONDS = 30
"""The longest between two times that a socket checks that its user may still read, looks for news whose wake-up was
lost, and says ``{"alive": true}``. It does so at random from half of it on: after a restart all sockets connect at
once, and would for ever after refresh at once, while everybody's news wait."""


class TenantConsumer(AsyncJsonWebsocketConsumer):
    """Signed-in members of a tenant only; the connection is accepted first so that its close code reaches the page."""

    tenant: Tenant
    wants_spans = False
    tasks: Sequence[asyncio.Task[None]] = ()
    places: Places | None = None

    async def connect(self) -> None:
        await self.accept()
        membership = await database_sync_to_async(get_acting_membership)(
            user=self.scope["user"], session=self.scope["session"]
        )
        if membership is None:
            await self.close(CLOSE_SIGNED_OUT)
            return
        self.tenant = membership.tenant
        places = places_of_member(self.tenant, self.scope["user"])
        try:
            await sync_to_async(places.take)()
        except TooMany as refused:
            await self._close_as_one_too_many(refused)
            return
        self.places = places
        self.sending = asyncio.Lock()  # a wake-up and a refresh may coincide
        try:
            await database_sync_to_async(self.find)()
        except Http404:
            await self.close(CLOSE_NOT_FOUND)
            return
        self.offered: asyncio.Queue[Any] = asyncio.Queue()
        # Listening before reading: what happens in between is offered.
        await self.listen()
        await self.send_first()
        self.tasks = [asyncio.create_task(self._refresh()), asyncio.create_task(self._send_offered())]

    async def disconnect(self, code: int) -> None:
        for task in self.tasks:
            task.cancel()
        await get_hub().leave(stream=self)
        if self.places:
            await sync_to_async(self.places.release)()

    def offer(self, page: Any) -> None:
        """See ``hub.Shown``. A client so slow that pages pile up gets what it missed by a read of its own."""
        if self.offered.qsize() >= MOST_WAITING:
            while not self.offered.empty():
                self.offered.get_nowait()
            page = None
        self.offered.put_nowait(page)

    async def _send_offered(self) -> None:
        while True:
            page = await self.offered.get()
            try:
                if page is None:
                    await self.send_missed()
                else:
                    await self.send_page(page)
            except Http404:  # the job is gone
                continue

    async def _close_as_one_too_many(self, refused: TooMany) -> None:
        """The reason names the limit and when to try again, as far as a close frame holds it."""
        assert refused.limit is not None
        reason = f"{refused.limit.kind}: {refused.limit.limit:g} are open, the limit. {refused.hint}"
        await self.close(CLOSE_TOO_MANY, reason[:LONGEST_REASON])

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS * random.uniform(0.5, 1))
            if not await database_sync_to_async(self.may_read)():
                await self.close(CLOSE_SIGNED_OUT)
                return
            if self.places and not await sync_to_async(self.places.keep)():
                await self.close(CLOSE_TOO_MANY, "Too many streams are open.")
                return
            try:
                await self.send_missed()
            except Http404:  # the job was removed
                await self.close(CLOSE_NOT_FOUND)
                return
            await self.send_json({"alive": True})

    def may_read(self) -> bool:
        """The session still is this user's, and the user still a member."""
        engine = import_module(settings.SESSION_ENGINE)
        session = engine.SessionStore(session_key=self.scope["session"].session_key)
        user = self.scope["user"]
        is_theirs = session.get(SESSION_KEY) == str(user.pk)
        return is_theirs and may_still_read(tenant=self.tenant, user=user, session=session)

    def find(self) -> None:
        """What is to be shown; raises Http404 for what the tenant does not own."""

    async def listen(self) -> None:
        """Have the hub offer pages."""
        raise NotImplementedError

    async def send_first(self) -> None:
        raise NotImplementedError

    async def send_missed(self) -> None:
        """Read what was not sent yet, and send it."""
        raise NotImplementedError

    async def send_page(self, page: Any) -> None:
        """Send what the hub has read, where it follows what was sent."""
        raise NotImplementedError


class JobConsumer(TenantConsumer):
    """``/ws/jobs/<job_id>/?after=<seq>[&spans=1]``: ``{"events": [...], "job": {...}, "last_seq": n}``.

    The first message comes at once, then one for all that is new. ``last_seq`` is what to name in ``after`` on
    reconnecting; it may be ahead of the last event shown, since spans are left out unless asked for.
    """

    def find(self) -> None:
        job_id: uuid.UUID = self.scope["url_route"]["kwargs"]["job_id"]
        query = parse_qs(self.scope["query_string"].decode("ascii", "replace"))
        after = query.get("after", ["0"])[0]
        self.job_id = get_job(self.tenant, job_id).pk
        self.last_seq = int(after) if after.isascii() and after.isdigit() and len(after) < 10 else 0
        self.wants_spans = query.get("spans") == ["1"]
        self.exclude = () if self.wants_spans else ("span",)
        self.shown: dict[str, Any] = {}

    async def listen(self) -> None:
        await get_hub().show_job(self.job_id, self)

    async def send_first(self) -> None:
        await self.send_missed()

    async def send_page(self, page: JobPage) -> None:
        if not page.fits(self.last_seq, wants_spans=self.wants_spans):
            await self.send_missed()
            return
        async with self.sending:
            behind = page.summary["last_seq"] < self.shown.get("last_seq", 0)  # read before what was sent last
            news = page.events_after(self.last_seq, wants_spans=self.wants_spans)
            if behind or (not news and page.summary == self.shown):
                return
            await self.send(text_data=page.render(self.last_seq, wants_spans=self.wants_spans))
            self.last_seq, self.shown = max(self.last_seq, page.last_seq), page.summary

    async def send_missed(self) -> None:
        """Send pages until nothing is left. The summary is sent even where only it has changed (a cancel request)."""
        async with self.sending:
            while True:
                news = await database_sync_to_async(read_news)(
                    self.tenant, self.job_id, after=self.last_seq, limit=PAGE_EVENTS, exclude=self.exclude
                )
                summary = summarize_job(news.job)
                if not news.events and summary == self.shown:
                    return
                await self.send_json({"events": news.events, "job": summary, "last_seq": news.last_seq})
                self.last_seq, self.shown = news.last_seq, summary


class JobListConsumer(TenantConsumer):
    """``/ws/jobs/``: ``{"jobs": [summary, ...]}``, first the newest jobs, then those that change."""

    async def listen(self) -> None:
        await get_hub().show_list(self.tenant.pk, self)

    async def send_first(self) -> None:
        async with self.sending:
            await self.send_json({"jobs": await database_sync_to_async(self._summaries)()})

    async def send_missed(self) -> None:
        await self.send_first()

    async def send_page(self, page: str) -> None:
        async with self.sending:
            await self.send(text_data=page)

    def _summaries(self) -> list[dict[str, Any]]:
        return [summarize_job(job) for job in list_jobs(self.tenant)[:LISTED_JOBS]]
