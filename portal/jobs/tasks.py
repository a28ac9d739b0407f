"""Celery tasks of the events worker; all idempotent, none holds a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery import shared_task
from django.db import transaction

from engine.events import ENGINE_READY, INGEST_EVENTS, EventBatch
from portal.engine_room.services import note_ingested
from portal.jobs import services
from portal.jobs.outbox import send_commands


@shared_task(name=INGEST_EVENTS)
def ingest_events(batch: str | dict[str, Any]) -> None:
    """Store a batch of the engine's events; one that fails comes again, for the engine hears no acknowledgement."""
    parsed = EventBatch.model_validate_json(batch) if isinstance(batch, str) else EventBatch.model_validate(batch)
    with transaction.atomic():  # one transaction: what a commit costs on the disk is paid once
        services.ingest_events(batch=parsed)
        note_ingested(batch=parsed)


@shared_task(name="portal.resend_commands")
def resend_commands() -> None:
    """Send commands the engine has not answered."""
    send_commands()


@shared_task(name=ENGINE_READY)
def engine_ready() -> None:
    """The engine (re)started: send it at once whatever it has not answered."""
    send_commands(older_than=timedelta(0))
