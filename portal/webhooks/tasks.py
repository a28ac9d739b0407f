"""Celery tasks of the deliveries worker; idempotent, each over within a minute."""

from __future__ import annotations

from celery import shared_task

from portal.celery import DELIVERIES_QUEUE
from portal.webhooks.delivery import deliver_due
from portal.webhooks.wake import DELIVER


@shared_task(name=DELIVER, queue=DELIVERIES_QUEUE)
def deliver() -> None:
    """Send the webhooks and mails that are due."""
    deliver_due()
