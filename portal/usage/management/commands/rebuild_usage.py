"""``manage.py rebuild_usage``: counts usage anew from the events, job by job, while everything runs."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from portal.jobs.models import Job
from portal.usage.recording import rebuild_usage


class Command(BaseCommand):
    help = "Count what jobs spent anew from their events; harmless while everything runs."

    def handle(self, *args: Any, **options: Any) -> None:
        job_ids = list(Job.objects.order_by("created_at").values_list("pk", flat=True))
        changed = sum(rebuild_usage(job_id=job_id) for job_id in job_ids)
        self.stdout.write(f"{len(job_ids)} job(s) counted, {changed} of them corrected.")
