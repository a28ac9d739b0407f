"""Celery tasks of the events worker; all idempotent, none holds a job."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task

from engine.events import ENGINE_READY
from portal.jobs.outbox import send_commands


@shared_task(name="portal.resend_commands")
def resend_commands() -> None:
    """Send commands the engine has not answered."""
    send_commands()


@shared_task(name=ENGINE_READY)
def engine_ready() -> None:
    """The engine (re)started: send it at once whatever it has not answered."""
    send_commands(older_than=timedelta(0))
