"""Celery tasks of the events worker; idempotent."""

from __future__ import annotations

from celery import shared_task

from portal.usage import enforcement


@shared_task(name="portal.enforce_quotas")
def enforce_quotas() -> None:
    """Warn and stop whoever has come to a limit, where the ingestion that noticed was cut short."""
    enforcement.enforce_quotas()
