"""Commands to the engine, sent at least once.

What is still to be sent is read from the jobs themselves: a job no event has come for needs its submit command, an
unfinished job whose control the engine has not applied the whole of that control. Commands are idempotent, so sending
one again is harmless.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from django.db.models import F, Q
from django.utils import timezone
from kombu.exceptions import OperationalError

from engine.spec import ACKNOWLEDGE_EVENTS, CONTROL_JOB, ENGINE_QUEUE, SUBMIT_JOB
from portal.celery import app
from portal.jobs.models import OPEN_STATUSES, Job

logger = logging.getLogger(__name__)

RESEND_AFTER = timedelta(seconds=60)


def send_command(name: str, *arguments: Any) -> bool:
    """Hand one command to the broker; False where the broker cannot be reached (the sweep comes back to it)."""
    try:
        app.send_task(name, args=list(arguments), queue=ENGINE_QUEUE, retry=False)
    except OperationalError as error:
        logger.warning("The broker cannot be reached, %s will be sent again: %s", name, error)
        return False
    return True


def send_commands(*, job_ids: Collection[uuid.UUID] | None = None, older_than: timedelta = RESEND_AFTER) -> int:
    """Send every command not sent yet, and again those sent more than ``older_than`` ago without an answer.

    ``job_ids`` narrows it to these jobs. Returns how many were sent.
    """
    due = timezone.now() - older_than
    jobs = Job.objects.filter(status__in=OPEN_STATUSES).order_by("created_at")
    if job_ids is not None:
        jobs = jobs.filter(pk__in=job_ids)
    sent = 0
    for job in jobs.filter(last_seq=0).filter(Q(submit_sent_at=None) | Q(submit_sent_at__lte=due)):
        if send_command(SUBMIT_JOB, job.spec):
            Job.objects.filter(pk=job.pk).update(submit_sent_at=timezone.now())
            sent += 1
    unapplied = jobs.filter(control_revision__gt=F("applied_revision"))
    for job in unapplied.select_related("quota_hold").filter(Q(control_sent_at=None) | Q(control_sent_at__lte=due)):
        if send_command(CONTROL_JOB, job.pk.hex, job.to_control().model_dump(mode="json")):
            # A revision made meanwhile is still to be sent.
            same = Job.objects.filter(pk=job.pk, control_revision=job.control_revision)
            same.update(control_sent_at=timezone.now())
            sent += 1
    return sent


def acknowledge_events(acknowledged: Mapping[str, int]) -> None:
    """Tell the engine up to which seq each job's events are stored; it sends again what it hears nothing of."""
    if acknowledged:
        send_command(ACKNOWLEDGE_EVENTS, dict(acknowledged))
