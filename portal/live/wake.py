"""Waking readers: the channel layer only says which jobs have news; what is new is read from the table."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from portal.jobs.models import Job

logger = logging.getLogger(__name__)

NEWS_GROUP = "news"
"""Every process with streams listens to it (``portal.live.hub``): one message a batch, whatever it holds."""


def job_group(job_id: uuid.UUID) -> str:
    return f"job.{job_id.hex}"


def tenant_group(tenant_id: uuid.UUID) -> str:
    return f"tenant.{tenant_id.hex}"


def wake_readers(jobs: Iterable[Job]) -> None:
    """Wake the streams of these jobs and of their tenants. Readers catch up later where it fails."""
    named = [[job.pk.hex, job.tenant_id.hex] for job in jobs]
    if not named:
        return
    try:
        async_to_sync(_send)({"type": "news", "jobs": named})
    except (RedisError, OSError) as error:
        logger.warning("The channel layer cannot be reached, readers are not woken: %s", error)


async def _send(message: dict[str, object]) -> None:
    layer = get_channel_layer()
    await layer.group_send(NEWS_GROUP, message)
