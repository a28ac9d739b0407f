"""Celery tasks of the events worker; idempotent."""

from __future__ import annotations

from celery import shared_task

from portal.ops import retention


@shared_task(name="portal.remove_expired")
def remove_expired() -> None:
    """Remove what is long over, a piece at a time."""
    if retention.remove_expired():
        remove_expired.delay()
