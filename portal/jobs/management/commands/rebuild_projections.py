"""``manage.py rebuild_projections``: make the tables of steps, evaluations and rollouts again from the events."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from portal.jobs.models import Job
from portal.jobs.projection import rebuild_tables


class Command(BaseCommand):
    help = "Make the tables of steps, evaluations and rollouts again from the events. Safe while jobs run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--job", help="Only this job's (its id).")

    def handle(self, *args: Any, job: str | None = None, **options: Any) -> None:
        jobs = Job.objects.order_by("created_at")
        if job:
            try:
                jobs = jobs.filter(pk=job)
            except ValidationError:
                raise CommandError(f"{job!r} is no job id.") from None
            if not jobs.exists():
                raise CommandError(f"There is no job {job}.")
        for pk, name in jobs.values_list("pk", "name"):
            with transaction.atomic():  # the lock keeps ingestion of this job waiting
                rebuild_tables(Job.objects.select_for_update().get(pk=pk))
            self.stdout.write(f"{name}: made again")
