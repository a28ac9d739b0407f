"""Runs an installation in the foreground until Ctrl-C: what ``manage.py up`` and ``manage.py demo`` share."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management import call_command

from portal.base_models.services import ensure_bundled_base_model
from portal.ops import installation, sandbox
from portal.ops.sealed import seal_all
from portal.ops.supervisor import Supervisor

Say = Callable[[str], None]


def prepare() -> None:
    """Bring database and static files to where the processes need them."""
    call_command("migrate", interactive=False, verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    ensure_bundled_base_model()
    seal_all()


async def serve(host: str, port: int, say: Say, while_up: Callable[[str], Awaitable[int | None]]) -> int:
    """Start everything, await ``while_up(address)``, stop everything.

    Returns: ``while_up``'s result, or 0 after Ctrl-C or SIGTERM.
    Raises: Refused or StartFailed, with nothing left running.
    """
    lock = installation.lock(settings.MARLAAS_VAR)
    try:
        installation.check_port(host, port)
        say("Preparing database and static files ...")
        await sync_to_async(prepare)()
        supervisor = Supervisor(installation.children(host, port), settings.MARLAAS_VAR / "log", say)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            return await _until(stop, _run(supervisor, host, port, say, while_up)) or 0
        finally:
            say("Stopping ...")
            await supervisor.stop()
            say("Stopped.")
    finally:
        lock.close()


async def _run(
    supervisor: Supervisor, host: str, port: int, say: Say, while_up: Callable[[str], Awaitable[int | None]]
) -> int | None:
    say(f"Starting; logs are in {settings.MARLAAS_VAR / 'log'}")
    testing = asyncio.create_task(sandbox.run_self_test(say))
    try:
        await supervisor.start()
        await testing  # done by now, as a rule
        return await while_up(_address(host, port))
    finally:
        testing.cancel()
        await asyncio.gather(testing, return_exceptions=True)


def _address(host: str, port: int) -> str:
    shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::", "::1") else host
    return f"http://{shown}:{port}"


async def _until(stop: asyncio.Event, work: Awaitable[int | None]) -> int | None:
    """The result of ``work``, or None as soon as ``stop`` is set."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return None
