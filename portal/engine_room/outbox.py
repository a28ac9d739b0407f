"""What the operator wants of the engine, sent until a report shows that the engine goes by it."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from engine.spec import DRAIN_ENGINE, SCALE_POOL
from portal.engine_room.models import DrainWish, PoolWish
from portal.engine_room.selectors import read_state
from portal.jobs.outbox import send_command

RESEND_AFTER = timedelta(seconds=15)


def send_wishes(*, older_than: timedelta = RESEND_AFTER) -> int:
    """Send each wish the engine has not reported yet, unless it was sent within ``older_than``; how many were sent."""
    report = read_state().report
    sent = 0
    for drain in DrainWish.objects.all():
        applied = report.drain.revision if report and report.drain else 0
        if drain.revision <= applied or not _is_due(drain.sent_at, older_than):
            continue
        if send_command(DRAIN_ENGINE, drain.to_control().model_dump(mode="json")):
            # A revision made meanwhile is still to be sent.
            DrainWish.objects.filter(revision=drain.revision).update(sent_at=timezone.now())
            sent += 1
    for pool in PoolWish.objects.all():
        applied = report.pool_revisions.get(pool.base_model_id, 0) if report else 0
        if pool.revision <= applied or not _is_due(pool.sent_at, older_than):
            continue
        if send_command(SCALE_POOL, pool.base_model_id, pool.to_control().model_dump(mode="json")):
            same = PoolWish.objects.filter(base_model_id=pool.base_model_id, revision=pool.revision)
            same.update(sent_at=timezone.now())
            sent += 1
    return sent


def _is_due(sent_at: datetime | None, older_than: timedelta) -> bool:
    return sent_at is None or sent_at <= timezone.now() - older_than
