"""Celery tasks of the events worker; idempotent."""

from __future__ import annotations

from celery import shared_task

from portal.datasets.uploads import delete_expired_uploads


@shared_task(name="portal.delete_expired_uploads")
def forget_uploads() -> None:
    """Remove uploads nobody has finished within their day."""
    delete_expired_uploads()
