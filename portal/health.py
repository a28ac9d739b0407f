"""Probes for a supervisor or load balancer: no sign-in, nothing secret.

``/healthz``: the process answers; restart it where it does not. ``/readyz``: what the portal needs answers; 503 where
something without which no page can be served is missing. What is only degraded is named with status 200: taking the
portal out of service would not mend the engine.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.http import HttpRequest, JsonResponse
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from portal.celery import app
from portal.engine_room.selectors import State, read_state
from portal.ops import sandbox

logger = logging.getLogger(__name__)

LEAST_FREE_BYTES = 256 * 1024 * 1024
"""With less free on the disk of ``MARLAAS_VAR``, uploads and commits of steps fail."""
LOW_FREE_BYTES = 2 * 1024 * 1024 * 1024
CHANNEL_SECONDS = 2.0


@dataclass(frozen=True)
class Check:
    """One thing the installation needs."""

    ok: bool
    detail: str = ""
    """What is wrong and what follows, in words; empty where nothing is."""


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@login_not_required
def readyz(request: HttpRequest) -> JsonResponse:
    """``{"status": "ok" | "degraded" | "not ready", "checks": {name: {"ok", "required", "detail"}}, "sandbox"}``.

    ``sandbox`` is the level at which tenants' Python is confined; without one it is refused, and all else works.
    """
    needed = {"database": _database(), "broker": _broker(), "channel_layer": _channel_layer(), "disk": _disk()}
    state = read_state() if needed["database"].ok else None
    wanted = {"events_worker": _events_worker(state), "engine": _engine(state), "sandbox": _sandbox()}
    ready = all(check.ok for check in needed.values())
    status = "not ready" if not ready else "ok" if all(check.ok for check in wanted.values()) else "degraded"
    checks = {
        name: {"ok": check.ok, "required": name in needed, "detail": check.detail}
        for name, check in {**needed, **wanted}.items()
    }
    answer = {"status": status, "checks": checks, "sandbox": sandbox.level()}
    return JsonResponse(answer, status=200 if ready else 503)


def _answers(name: str, ask: Callable[[], object], faults: tuple[type[Exception], ...]) -> Check:
    try:
        ask()
    except faults as error:
        logger.warning("readyz: the %s does not answer: %s", name, error)
        return Check(False, f"The {name} does not answer; the log says why.")
    return Check(True)


def _database() -> Check:
    def ask() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    return _answers("database", ask, (Error,))


def _broker() -> Check:
    def ask() -> None:
        with app.connection_for_write() as broker:
            broker.ensure_connection(max_retries=1, timeout=2)

    return _answers("broker", ask, (OperationalError, OSError))


def _channel_layer() -> Check:
    async def ask() -> None:
        layer = get_channel_layer()
        async with asyncio.timeout(CHANNEL_SECONDS):
            channel = await layer.new_channel("probe")
            await layer.send(channel, {"type": "probe"})
            await layer.receive(channel)

    return _answers("channel layer", async_to_sync(ask), (RedisError, OSError, TimeoutError))


def _disk() -> Check:
    free = shutil.disk_usage(settings.MARLAAS_VAR).free
    if free < LEAST_FREE_BYTES:
        return Check(False, "The disk of MARLAAS_VAR is full: uploads and training steps fail.")
    return Check(True, "The disk of MARLAAS_VAR is nearly full." if free < LOW_FREE_BYTES else "")


def _events_worker(state: State | None) -> Check:
    if state is not None and state.is_worker_alive:
        return Check(True)
    return Check(False, "The events worker shows no sign of life: pages do not follow what the engine does.")


def _engine(state: State | None) -> Check:
    if state is not None and state.is_heard:
        return Check(True)
    since = f" since {state.heard_at:%Y-%m-%d %H:%M:%S} UTC" if state and state.heard_at else ""
    return Check(False, f"The engine has not been heard from{since}: jobs wait, and go on when it is back.")


def _sandbox() -> Check:
    level = sandbox.level()
    if level in sandbox.CONFINED:
        return Check(True)
    return Check(False, f"The sandbox's level is {level}: tenants' Python is refused.")
