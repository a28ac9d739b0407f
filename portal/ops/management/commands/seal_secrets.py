"""``manage.py seal_secrets``: after an update, and after a change of MARLAAS_FIELD_KEYS or SECRET_KEY."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.ops.sealed import seal_all


class Command(BaseCommand):
    help = "Seals webhook secrets, seeds of second factors and environment tokens with the first of the keys."

    def handle(self, *args: Any, **options: Any) -> None:
        done = seal_all()
        self.stdout.write(f"{done.renewed} secret(s) sealed anew; {done.current} were sealed with the first key.")
        if done.lost:
            raise CommandError(
                "None of the keys opens these, they are as they were: "
                + "; ".join(done.lost)
                + ". Add the old key to MARLAAS_FIELD_KEYS or SECRET_KEY_FALLBACKS and run this again."
            )
