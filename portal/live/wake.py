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
    layer = get_channel_layer()
    send = async_to_sync(layer.group_send)
    try:
        for job in jobs:
            message = {"type": "job.news", "job_id": job.pk.hex}
            send(job_group(job.pk), message)
            send(tenant_group(job.tenant_id), message)
    except (RedisError, OSError) as error:
        logger.warning("The channel layer cannot be reached, readers are not woken: %s", error)
