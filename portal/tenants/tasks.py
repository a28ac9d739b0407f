"""Celery tasks of the events worker for tenants; all idempotent, each over within seconds."""

from __future__ import annotations

import uuid

from celery import shared_task

from portal.tenants import exports
from portal.tenants.deletion import purge_due_tenants
from portal.tenants.exports import CONTINUE_EXPORT, sweep_exports


@shared_task(name=CONTINUE_EXPORT)
def continue_export(export_id: str, slice_number: int) -> None:
    """Another stretch of an export."""
    exports.continue_export(export_id=uuid.UUID(export_id), slice_number=slice_number)


@shared_task(name="portal.sweep_tenants")
def sweep_tenants() -> None:
    """Remove tenants whose grace period has passed and exports that have expired; wake exports that got stuck."""
    sweep_exports()
    if purge_due_tenants():
        sweep_tenants.delay()
