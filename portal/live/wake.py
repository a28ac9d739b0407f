"""Waking readers: the channel layer only says that a job has news; what is new is read from the table."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from portal.jobs.models import Job

logger = logging.getLogger(__name__)


def job_group(job_id: uuid.UUID) -> str:
    return f"job.{job_id.hex}"


def tenant_group(tenant_id: uuid.UUID) -> str:
    return f"tenant.{tenant_id.hex}"


def wake_readers(jobs: Iterable[Job]) -> None:
    """Wake the sockets of these jobs and of their tenants' job lists. Readers catch up later where it fails."""
    messages = [
        (group, {"type": "job.news", "job_id": job.pk.hex})
        for job in jobs
        for group in (job_group(job.pk), tenant_group(job.tenant_id))
    ]
    try:
        async_to_sync(_send)(messages)
    except (RedisError, OSError) as error:
        logger.warning("The channel layer cannot be reached, readers are not woken: %s", error)


async def _send(messages: list[tuple[str, dict[str, str]]]) -> None:
    layer = get_channel_layer()
    for group, message in messages:
        await layer.group_send(group, message)
