"""Celery tasks of the events worker; all idempotent."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from engine.spec import ENGINE_REPORT, EngineReport
from portal.engine_room import services
from portal.engine_room.outbox import send_wishes


@shared_task(name=ENGINE_REPORT)
def engine_report(report: dict[str, Any]) -> None:
    """Keep the engine's report; what it shows not to have reached the engine is sent again."""
    services.store_report(report=EngineReport.model_validate(report))


@shared_task(name="portal.beat")
def beat() -> None:
    """Show that the events worker works, and send the operator's wishes the engine has not answered."""
    services.note_heartbeat()
    send_wishes()


@shared_task(name="portal.prune_spans")
def prune_spans() -> None:
    services.prune_spans()
