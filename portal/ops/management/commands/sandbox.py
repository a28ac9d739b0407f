"""``manage.py sandbox``: attack the sandbox for tenants' Python and show what came of it."""

from __future__ import annotations

import subprocess
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.ops.sandbox import SELF_TEST, environment


class Command(BaseCommand):
    help = "Attack the sandbox for tenants' Python on this machine; print its level and the table of attacks."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def handle(self, *args: Any, json: bool, **options: Any) -> None:
        command = [*SELF_TEST, "--json"] if json else SELF_TEST
        test = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=False)
        self.stdout.write(test.stdout.rstrip())
        if test.returncode != 0:
            raise CommandError("No level of the sandbox holds here; tenants' Python is refused.")
