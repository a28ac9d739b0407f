"""Reads for operators, across all tenants. Nothing here is shown to tenants."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, QuerySet
from django.utils import timezone
from kombu.exceptions import ChannelError, OperationalError
from pydantic import ValidationError

from engine.events import EVENTS_QUEUE
from engine.spec import ENGINE_QUEUE, REPORT_SECONDS, EngineReport, TenantShare
from portal.base_models.models import BaseModel
from portal.celery import DELIVERIES_QUEUE, app
from portal.engine_room.models import DrainWish, EngineState, PoolWish
from portal.jobs.models import OPEN_STATUSES, Job
from portal.tenants.models import Tenant

STALE_AFTER = timedelta(seconds=4 * REPORT_SECONDS)
"""A report older than this says nothing about now."""
WORKER_STALE_AFTER = timedelta(seconds=60)
SHOWN_JOBS = 50
QUEUES = (ENGINE_QUEUE, EVENTS_QUEUE, DELIVERIES_QUEUE)


@dataclass(frozen=True)
class State:
    """What is known of engine and events worker."""

    report: EngineReport | None
    """The last one; None before the first, or where it was written by another version."""
    heard_at: datetime | None
    worker_seen_at: datetime | None
    events_ingested: int
    ingested_at: datetime | None
    ingest_lag_seconds: float | None

    @property
    def is_heard(self) -> bool:
        """The report is about now."""
        return self.heard_at is not None and timezone.now() - self.heard_at <= STALE_AFTER

    @property
    def is_worker_alive(self) -> bool:
        return self.worker_seen_at is not None and timezone.now() - self.worker_seen_at <= WORKER_STALE_AFTER


def read_state() -> State:
    row = EngineState.objects.filter(pk=EngineState.ONLY).first() or EngineState()
    try:
        report = EngineReport.model_validate(row.report) if row.report else None
    except ValidationError:
        report = None
    return State(report, row.heard_at, row.worker_seen_at, row.events_ingested, row.ingested_at, row.ingest_lag_seconds)


def get_drain() -> DrainWish | None:
    """The operator's last wish; None where there never was one."""
    return DrainWish.objects.select_related("changed_by").filter(pk=DrainWish.ONLY).first()


def list_open_jobs() -> QuerySet[Job]:
    """Of all tenants, what has not ended, oldest first."""
    jobs = Job.objects.filter(status__in=OPEN_STATUSES).select_related("tenant", "base_model")
    return jobs.order_by("created_at")


def count_jobs_by_status() -> dict[str, int]:
    """Of all tenants, ended ones included."""
    rows = Job.objects.order_by().values_list("status").annotate(Count("pk"))
    return dict(rows)


@dataclass(frozen=True)
class Share:
    """A tenant's share of a stage in the last minutes."""

    tenant: str
    weight: float
    waiting: int
    due: float
    """Fraction its weight would give it among those shown."""
    got: float
    """Fraction it had."""


def compare_shares(shares: list[TenantShare], names: dict[str, str]) -> list[Share]:
    """What each tenant got against what its weight gives it, the largest first."""
    weights, used = sum(share.weight for share in shares) or 1.0, sum(share.used for share in shares) or 1.0
    rows = [
        Share(
            names.get(share.tenant_id, share.tenant_id), share.weight, share.waiting, share.weight / weights,
            share.used / used,
        )
        for share in shares
    ]  # fmt: skip
    return sorted(rows, key=lambda share: (-share.got, share.tenant))


def list_pools(report: EngineReport | None) -> list[dict[str, Any]]:
    """Every base model with what the engine says of its pool and what is wanted of it; three queries."""
    states = {pool.base_model: pool for pool in report.pools} if report else {}
    wishes = PoolWish.objects.in_bulk()
    shares = [share for pool in states.values() for share in (*pool.rollout_shares, *pool.trainer_shares)]
    names = _tenant_names({share.tenant_id for share in shares})
    pools = []
    for model in BaseModel.objects.all():
        state, wish = states.get(model.pk), wishes.get(model.pk)
        applied = report.pool_revisions.get(model.pk, 0) if report else 0
        pools.append(
            {
                "model": model,
                "state": state,
                "wish": wish,
                "wish_pending": wish is not None and wish.revision > applied,
                "workers_wanted": wish.rollout_workers if wish else state.wanted_rollout_workers if state else 1,
                "kv_used": state.kv_granted_tokens / state.kv_budget_tokens
                if state and state.kv_budget_tokens
                else None,
                "rollout_shares": compare_shares(state.rollout_shares, names) if state else [],
                "trainer_shares": compare_shares(state.trainer_shares, names) if state else [],
            }
        )
    return pools


def _tenant_names(ids: set[str]) -> dict[str, str]:
    """Names by the id the engine knows a tenant by."""
    known = Tenant.objects.filter(pk__in=[found for text in ids if (found := _uuid(text))])
    return {identifier: tenant.name for tenant in known for identifier in (str(tenant.pk), tenant.pk.hex)}


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def queue_depths() -> dict[str, int | None]:
    """Messages that wait in each Celery queue; None where the broker does not answer."""
    try:
        with app.connection_for_read() as broker:
            broker.ensure_connection(max_retries=1, timeout=2)
            return {name: _depth(broker.default_channel, name) for name in QUEUES}
    except (OperationalError, OSError):
        return dict.fromkeys(QUEUES)


def _depth(channel: Any, name: str) -> int:
    try:
        return int(channel.queue_declare(name, passive=True).message_count)
    except ChannelError:  # there is none before its first message, and with Redis none when it is empty
        return 0
