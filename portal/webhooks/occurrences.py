"""What tenants are told of, turned into messages to their endpoints and members in the transaction it happens in."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from portal.tenants.models import Tenant
from portal.usage.meters import Meter
from portal.usage.wording import describe_reached, describe_used, describe_warning, hint_of, reset_date
from portal.webhooks.mails import MailText, mail_members
from portal.webhooks.models import PING, Delivery, Endpoint
from portal.webhooks.wake import wake_deliveries

if TYPE_CHECKING:  # both are read only
    from portal.adapters.models import AdapterVersion
    from portal.jobs.models import Job

NAMED_JOBS = 10
"""In a mail; a webhook tells of all."""
MAILED = {"job.succeeded": "succeeded", "job.failed": "failed"}


@dataclass(frozen=True)
class Occurrence:
    """Something in the course of a job that is told of."""

    type: str
    seq: int
    """Of the job's event that says so."""
    adapter: AdapterVersion | None = None


def announce_job(*, job: Job, occurrence: Occurrence) -> None:
    """Tell the tenant's endpoints, and members by mail of how the job ended."""
    data: dict[str, Any] = {"job": _describe_job(job)}
    if occurrence.adapter is not None:
        data["adapter"] = _describe_adapter(occurrence.adapter)
    publish(tenant_id=job.tenant_id, type=occurrence.type, key=f"{job.pk.hex}:{occurrence.seq}", data=data)
    if occurrence.type in MAILED:
        mail_members(
            tenant=job.tenant,
            about=occurrence.type,
            key=f"{job.pk.hex}:{occurrence.seq}",
            owner_id=job.created_by_id,
            text=MailText(
                subject=f"{job.name} {MAILED[occurrence.type]}",
                lines=[
                    f"The job {job.name} {MAILED[occurrence.type]} after step {job.step} of {job.steps}.",
                    *(line for line in (job.reason, job.next) if line),
                ],
                link=absolute(reverse("jobs:detail", args=[job.pk])),
            ),
        )


def announce_quota(*, tenant: Tenant, notice_id: uuid.UUID, level: str, meter: Meter) -> None:
    """Tell endpoints and members that a quota is nearly or wholly used."""
    text = describe_warning(meter) if level == "warning" else describe_reached(meter)
    following = (
        "Jobs go on until it is used up; then they are paused."
        if level == "warning"
        else (
            "Running jobs are being paused; they keep every committed step and go on by themselves once there is room "
            "again."
        )
    )
    data = {"quota": {**_describe_quota(meter), "message": text, "hint": hint_of(meter)}}
    publish(tenant_id=tenant.pk, type=f"quota.{level}", key=notice_id.hex, data=data)
    used = f"{meter.percent} % used" if level == "warning" else "used up"
    reset = f"It starts anew on {reset_date(meter)}." if meter.resets_at else ""
    mail_members(
        tenant=tenant,
        about=f"quota.{level}",
        key=notice_id.hex,
        text=MailText(
            subject=f"{tenant.name}: quota of {meter.label.lower()} {used}",
            lines=[f"{meter.label}: {describe_used(meter)}.", *([reset] if reset else []), following],
            link=absolute(reverse("usage:overview")),
        ),
    )


def announce_resumed(*, tenant: Tenant, meter: Meter, jobs: Sequence[Job]) -> None:
    """Tell endpoints and members that jobs a quota had paused go on."""
    names = ", ".join(job.name for job in jobs[:NAMED_JOBS])
    if len(jobs) > NAMED_JOBS:
        names += f" and {len(jobs) - NAMED_JOBS} more"
    text = f"The quota of {meter.label.lower()} has room again; {len(jobs)} job(s) it had paused go on: {names}."
    described = [
        {"id": str(job.pk), "name": job.name, "url": absolute(reverse("jobs:detail", args=[job.pk]))} for job in jobs
    ]
    # A job's revision names this resumption, whoever tells of it again.
    key = f"resumed:{jobs[0].pk.hex}:{jobs[0].control_revision}"
    data = {"quota": {**_describe_quota(meter), "message": text}, "jobs": described}
    publish(tenant_id=tenant.pk, type="quota.resumed", key=key, data=data)
    mail_members(
        tenant=tenant,
        about="quota.resumed",
        key=key,
        text=MailText(
            subject=f"{tenant.name}: jobs go on, the quota of {meter.label.lower()} has room again",
            lines=[text],
            link=absolute(reverse("usage:overview")),
        ),
    )


def publish(*, tenant_id: uuid.UUID, type: str, key: str, data: dict[str, Any]) -> None:
    """Put a message on its way to every endpoint of the tenant that wants it; once, however often it is called."""
    endpoints = Endpoint.objects.filter(tenant_id=tenant_id, enabled=True)
    deliveries = [make_delivery(endpoint, type, key, data) for endpoint in endpoints if type in endpoint.events]
    if deliveries:
        Delivery.objects.bulk_create(deliveries, ignore_conflicts=True)
        transaction.on_commit(wake_deliveries)


def make_delivery(endpoint: Endpoint, type: str, key: str, data: dict[str, Any]) -> Delivery:
    """Not saved yet."""
    return Delivery(endpoint=endpoint, event_type=type, key=key, body=render_body(type, timezone.now(), data))


def render_body(type: str, moment: datetime, data: dict[str, Any]) -> str:
    """The message as Standard Webhooks recommends it."""
    return json.dumps({"type": type, "timestamp": moment.isoformat(), "data": data}, ensure_ascii=False)


def make_ping(endpoint: Endpoint) -> Delivery:
    """Not saved yet."""
    data = {"message": "This is a test.", "endpoint": str(endpoint.pk)}
    return make_delivery(endpoint, PING, f"ping:{uuid.uuid4().hex}", data)


def absolute(path: str) -> str:
    """An address that works outside the portal."""
    return settings.PUBLIC_URL.rstrip("/") + path


def _describe_quota(meter: Meter) -> dict[str, Any]:
    return {
        "kind": meter.kind.value,
        "used": meter.used,
        "limit": meter.limit,
        "resets_at": meter.resets_at.isoformat() if meter.resets_at else None,
        "url": absolute(reverse("usage:overview")),
    }


def _describe_job(job: Job) -> dict[str, Any]:
    return {
        "id": str(job.pk),
        "name": job.name,
        "status": job.status,
        "reason": job.reason,
        "step": job.step,
        "steps": job.steps,
        "base_model": job.base_model_id,
        "base_accuracy": job.base_accuracy,
        "accuracy": job.accuracy,
        "last_accuracy": job.last_accuracy,
        "url": absolute(reverse("jobs:detail", args=[job.pk])),
    }


def _describe_adapter(adapter: AdapterVersion) -> dict[str, Any]:
    return {
        "id": str(adapter.pk),
        "name": adapter.name,
        "version": adapter.version,
        "sha256": adapter.sha256,
        "size_bytes": adapter.size_bytes,
        "rank": adapter.rank,
        "url": absolute(reverse("adapters:detail", args=[adapter.pk])),
    }
