"""``manage.py soak``: a whole installation of its own under load, disturbed at random, and counted at the end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.ops.installation import Refused, free_port, private_folder
from portal.ops.running import serve
from portal.ops.soak import Soak, SoakFailed
from portal.ops.soak_plan import make_plan
from portal.ops.soak_report import as_json, report
from portal.ops.supervisor import StartFailed

OWN_FOLDER = "MARLAAS_SOAK_FOLDER"
"""Set in the environment of the process that runs the soak: the scratch folder it has for itself."""

SETTINGS = {
    # A cache for about ten groups at once: tenants compete for it, so that shares show.
    "MARLAAS_KV_CACHE_GIB": "0.003",
    # Fewer slots and resident jobs than jobs.
    "MARLAAS_ADAPTER_SLOTS": "16",
    "MARLAAS_RESIDENT_JOBS": "8",
    "MARLAAS_MAX_SEQUENCES": "64",
    # The model is fp32 on both sides.
    "MARLAAS_PROBE_TOLERANCE": "0.001",
}
ELSEWHERE = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "RAY_ADDRESS", "SECRET_KEY")


class Command(BaseCommand):
    help = (
        "Start an installation of its own with a tiny model, let the jobs of many tenants train, pause, resume and "
        "cancel them and kill -9 processes at random, and count what was lost or doubled."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--jobs", type=int, default=32)
        parser.add_argument("--tenants", type=int, default=8)
        parser.add_argument("--minutes", type=float, default=5.0, help="of disturbances")
        parser.add_argument("--finish-minutes", type=float, default=10.0, help="that the jobs may take to end after it")
        parser.add_argument("--seed", type=int, help="of everything random; printed where it is not given")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome there")

    def handle(self, *args: Any, **options: Any) -> None:
        if os.environ.get(OWN_FOLDER) != str(settings.MARLAAS_VAR):
            start_in_own_folder()
        seed = random.randrange(2**31) if options["seed"] is None else options["seed"]
        plan = make_plan(seed, options["tenants"], options["jobs"], 60 * options["minutes"])
        logging.getLogger("httpx").setLevel(logging.WARNING)  # not a line for every look at the jobs
        self.stdout.write(f"Seed {seed}, folder {settings.MARLAAS_VAR}")
        failed = False

        async def soak(address: str) -> None:
            nonlocal failed
            outcome = await Soak(plan, address, 60 * options["finish_minutes"], self.stdout.write).run()
            failed = not outcome.succeeded
            self.stdout.write("\n" + report(outcome))
            if options["json"]:
                options["json"].write_text(json.dumps(as_json(outcome), indent=1) + "\n")

        try:
            asyncio.run(serve("127.0.0.1", free_port(), self.say, soak))
        except (Refused, StartFailed, SoakFailed) as error:
            raise CommandError(f"{error}\nWhat was written is in {settings.MARLAAS_VAR}") from None
        if failed:
            raise CommandError(f"Something was lost or doubled; logs and data are in {settings.MARLAAS_VAR}")
        shutil.rmtree(private_folder(settings.MARLAAS_VAR), ignore_errors=True)
        shutil.rmtree(settings.MARLAAS_VAR, ignore_errors=True)

    def say(self, text: str) -> None:
        """The first line alone: processes die all the time, their last words are in the logs."""
        self.stdout.write(text.splitlines()[0])


def start_in_own_folder() -> None:
    """Become the same command on a new, empty folder, whatever installation this one belongs to. Does not return."""
    folder = str(Path(tempfile.mkdtemp(prefix="marlaas-soak-")).resolve())
    inherited = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    os.execve(
        sys.executable,
        [sys.executable, *sys.argv],
        {**SETTINGS, **inherited, "MARLAAS_VAR": folder, OWN_FOLDER: folder},
    )
