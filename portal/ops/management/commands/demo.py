"""``manage.py demo``: start the installation and let two tenants train side by side."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.ops.demo import as_json, failure, prepare_tenants, report, run
from portal.ops.demo_client import ApiRefused
from portal.ops.installation import Refused
from portal.ops.running import serve
from portal.ops.supervisor import StartFailed


class Command(BaseCommand):
    help = "Start everything, train one job of each of two demo tenants at once, and show how they do."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--seed", type=int, default=0, help="of data, adapters and sampling")
        parser.add_argument("--until-done", action="store_true", help="stop everything and exit when both jobs ended")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome there")

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        self.seed, self.until_done, self.json = options["seed"], options["until_done"], options["json"]
        logging.getLogger("httpx").setLevel(logging.WARNING)  # not a line for every look at the jobs
        self.failure: str | None = "stopped before both jobs had ended"
        try:
            asyncio.run(serve(host, port, self.stdout.write, self.demonstrate))
        except (Refused, StartFailed, ApiRefused) as error:
            raise CommandError(str(error)) from None
        if self.failure:
            raise CommandError(self.failure)

    async def demonstrate(self, address: str) -> None:
        """Seed, follow both jobs to their end, print the outcome; then stay up unless told to end."""
        started = time.monotonic()
        logins = await sync_to_async(prepare_tenants)(self.seed)
        self.stdout.write(f"\nThe portal is at {address}")
        for login in logins:
            self.stdout.write(f"    {login.task.tenant:<14} sign in as {login.task.user}, password {login.password}")
        self.stdout.write("")
        folder = Path(settings.MARLAAS_VAR) / "demo" / f"seed-{self.seed}"
        outcomes = await run(address, logins, folder, self.stdout.write, live=self.stdout.isatty())
        self.failure = failure(outcomes)
        self.stdout.write("\n" + report(outcomes))
        if self.json:
            self.json.write_text(json.dumps(as_json(outcomes, self.seed, time.monotonic() - started), indent=1) + "\n")
        if not self.until_done:
            self.stdout.write(f"\nThe portal stays up at {address}. Ctrl-C stops everything.")
            await asyncio.Event().wait()
