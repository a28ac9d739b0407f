"""Live updates over WebSockets.

Invariants: a client gets every event after the seq it names, in order, each once, whatever wake-ups come or are lost:
messages of the channel layer carry no content, what is new is read from the table; a waiting socket holds no database
connection; whoever signs out or leaves the tenant is cut off at the next refresh; a socket is never silent for longer
than a refresh takes to come round, so that a client can tell a dead network from a quiet job.
"""

from __future__ import annotations

import asyncio
import uuid
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.http import Http404

from portal.jobs.selectors import get_job, list_jobs, read_news, summarize_job
from portal.live.wake import job_group, tenant_group
from portal.tenants.acting import get_acting_membership, may_still_read
from portal.tenants.models import Tenant

CLOSE_SIGNED_OUT = 4401
CLOSE_NOT_FOUND = 4404
PAGE_EVENTS = 200
LISTED_JOBS = 100
REFRESH_SECONDS = 30
"""How often a socket checks that its user may still read, looks for news whose wake-up was lost, and says
``{"alive": true}``."""


class TenantConsumer(AsyncJsonWebsocketConsumer):
    """Signed-in members of a tenant only; the connection is accepted first so that its close code reaches the page."""

    tenant: Tenant
    group: str = ""
    refreshing: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await self.accept()
        membership = await database_sync_to_async(get_acting_membership)(
            user=self.scope["user"], session=self.scope["session"]
        )
        if membership is None:
            await self.close(CLOSE_SIGNED_OUT)
            return
        self.tenant = membership.tenant
        self.sending = asyncio.Lock()  # a wake-up and a refresh may coincide
        try:
            self.group = await database_sync_to_async(self.find_group)()
        except Http404:
            await self.close(CLOSE_NOT_FOUND)
            return
        # Listening before reading: what happens in between wakes us.
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.send_first()
        self.refreshing = asyncio.create_task(self._refresh())

    async def disconnect(self, code: int) -> None:
        if self.refreshing:
            self.refreshing.cancel()
        if self.group:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            if not await database_sync_to_async(self.may_read)():
                await self.close(CLOSE_SIGNED_OUT)
                return
            await self.send_missed()
            await self.send_json({"alive": True})

    def may_read(self) -> bool:
        """The session still is this user's, and the user still a member."""
        engine = import_module(settings.SESSION_ENGINE)
        session = engine.SessionStore(session_key=self.scope["session"].session_key)
        user = self.scope["user"]
        is_theirs = session.get(SESSION_KEY) == str(user.pk)
        return is_theirs and may_still_read(tenant=self.tenant, user=user, session=session)

    def find_group(self) -> str:
        """The channel-layer group to listen to; raises Http404 for what the tenant does not own."""
        raise NotImplementedError

    async def send_first(self) -> None:
        raise NotImplementedError

    async def send_missed(self) -> None:
        raise NotImplementedError


class JobConsumer(TenantConsumer):
    """``/ws/jobs/<job_id>/?after=<seq>[&spans=1]``: ``{"events": [...], "job": {...}, "last_seq": n}``.

    The first message comes at once, then one for all that is new. ``last_seq`` is what to name in ``after`` on
    reconnecting; it may be ahead of the last event shown, since spans are left out unless asked for.
    """

    def find_group(self) -> str:
        job_id: uuid.UUID = self.scope["url_route"]["kwargs"]["job_id"]
        query = parse_qs(self.scope["query_string"].decode("ascii", "replace"))
        after = query.get("after", ["0"])[0]
        self.job_id = get_job(self.tenant, job_id).pk
        self.last_seq = int(after) if after.isascii() and after.isdigit() and len(after) < 10 else 0
        self.exclude = () if query.get("spans") == ["1"] else ("span",)
        self.shown: dict[str, Any] = {}
        return job_group(job_id)

    async def send_first(self) -> None:
        await self.send_missed()

    async def job_news(self, message: dict[str, Any]) -> None:
        await self.send_missed()

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

    def find_group(self) -> str:
        return tenant_group(self.tenant.pk)

    async def send_first(self) -> None:
        async with self.sending:
            await self.send_json({"jobs": await database_sync_to_async(self._summaries)()})

    async def send_missed(self) -> None:
        await self.send_first()

    async def job_news(self, message: dict[str, Any]) -> None:
        async with self.sending:
            jobs = await database_sync_to_async(self._summaries)(uuid.UUID(message["job_id"]))
            await self.send_json({"jobs": jobs})

    def _summaries(self, job_id: uuid.UUID | None = None) -> list[dict[str, Any]]:
        jobs = list_jobs(self.tenant)
        jobs = jobs.filter(pk=job_id) if job_id else jobs[:LISTED_JOBS]
        return [summarize_job(job) for job in jobs]
