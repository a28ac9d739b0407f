"""``manage.py up``: start the whole installation and keep it running until Ctrl-C."""

from __future__ import annotations

import asyncio
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.ops.installation import Refused
from portal.ops.running import serve
from portal.ops.supervisor import StartFailed


class Command(BaseCommand):
    help = "Start the portal, the engine and what they need on this machine; Ctrl-C stops all of it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address the web server listens on")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        async def until_stopped(address: str) -> None:
            self.stdout.write(
                f"The portal is at {address}\n"
                "Make an administrator with `.venv/bin/python manage.py createsuperuser`. Ctrl-C stops everything."
            )
            await asyncio.Event().wait()

        try:
            asyncio.run(serve(host, port, self.stdout.write, until_stopped))
        except (Refused, StartFailed) as error:
            raise CommandError(str(error)) from None
