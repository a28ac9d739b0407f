"""Writes of the engine room: the operator's wishes, and what engine and events worker say of themselves.

Invariants: a wish is changed under its row's lock, one revision a change; both kinds are audited, with who and why; a
report that is older than the stored one changes nothing.
"""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F
from django.http import Http404
from django.utils import timezone

from engine.events import EventBatch, Span
from engine.spec import EngineReport
from portal.audit.services import record_change
from portal.base_models.models import BaseModel
from portal.bulk import insert_rows
from portal.engine_room.models import DrainWish, EngineState, PoolWish, StageSpan
from portal.engine_room.outbox import send_wishes
from portal.errors import FieldError, InvalidInput, NotAllowed
from portal.jobs.models import Job

PERMISSION = "engine_room.operate_engine"
MOST_WORKERS = 256
KEEP_SPANS = timedelta(hours=24)
AT_ONCE = timedelta(0)


def require_operator(user: User) -> None:
    """Raises NotAllowed for whoever may only look."""
    if not user.has_perm(PERMISSION):
        raise NotAllowed(
            "You may look at the engine, not change it.",
            hint="A superuser can give you the permission to operate the engine.",
        )


def drain_engine(*, user: User, reason: str) -> DrainWish:
    """Have the engine pause every job after its last committed step, and take no new one, until ``resume_engine``.

    ``reason`` is shown to the tenants. Raises NotAllowed, InvalidInput.
    """
    require_operator(user)
    reason = reason.strip().rstrip(".")
    if not reason:
        raise InvalidInput(
            "The engine was not drained.", fields=[FieldError("reason", "is needed: tenants see why they wait")]
        )
    if len(reason) > 300:
        raise InvalidInput(
            "The engine was not drained.", fields=[FieldError("reason", "must be at most 300 characters")]
        )
    return _change_drain(user=user, draining=True, reason=reason)


def resume_engine(*, user: User) -> DrainWish:
    """Have the engine take work again: jobs go on by themselves, but for those their tenants paused.

    Raises NotAllowed.
    """
    require_operator(user)
    return _change_drain(user=user, draining=False, reason="")


def _change_drain(*, user: User, draining: bool, reason: str) -> DrainWish:
    with transaction.atomic():
        first = {"revision": 0, "draining": False, "changed_at": timezone.now()}
        DrainWish.objects.get_or_create(pk=DrainWish.ONLY, defaults=first)
        wish = DrainWish.objects.select_for_update().get(pk=DrainWish.ONLY)
        if wish.draining == draining and wish.reason == reason:
            return wish
        before = {"draining": wish.draining, "reason": wish.reason}
        wish.revision += 1
        wish.draining, wish.reason = draining, reason
        wish.changed_at, wish.changed_by_id, wish.sent_at = timezone.now(), user.pk, None
        wish.save()
        record_change(
            tenant=None,
            user=user,
            action="engine.drained" if draining else "engine.resumed",
            target=wish,
            label="Engine",
            before=before,
            after={"draining": draining, "reason": reason},
            reason=reason,
        )
        transaction.on_commit(lambda: send_wishes())
    return wish


def scale_pool(*, user: User, base_model_id: str, rollout_workers: int) -> PoolWish:
    """Have as many rollout workers for a base model, now and after restarts. One that is added serves once it has every
    published version; one that is taken away finishes what it has begun.

    Raises NotAllowed, InvalidInput, Http404.
    """
    require_operator(user)
    if not 1 <= rollout_workers <= MOST_WORKERS:
        fault = FieldError("rollout_workers", f"must be between 1 and {MOST_WORKERS}")
        raise InvalidInput("The pool was not scaled.", fields=[fault])
    with transaction.atomic():
        model = BaseModel.objects.select_for_update().filter(pk=base_model_id).first()
        if model is None:
            raise Http404("No such base model.")
        wish = PoolWish.objects.filter(base_model=model).first() or PoolWish(base_model=model, revision=0)
        if wish.revision and wish.rollout_workers == rollout_workers:
            return wish
        before = {"rollout_workers": wish.rollout_workers} if wish.revision else {}
        wish.revision += 1
        wish.rollout_workers, wish.changed_at, wish.sent_at = rollout_workers, timezone.now(), None
        wish.save()
        after = {"rollout_workers": rollout_workers}
        record_change(tenant=None, user=user, action="pool.scaled", target=model, before=before, after=after)
        transaction.on_commit(lambda: send_wishes())
    return wish


def store_report(*, report: EngineReport) -> bool:
    """Keep what the engine says of itself; False where something newer is known."""
    with transaction.atomic():
        state = _locked_state()
        if state.report and state.report["time"] > report.time:
            return False
        state.report, state.heard_at = report.model_dump(mode="json"), timezone.now()
        state.save(update_fields=["report", "heard_at"])
    return True


def note_ingested(*, batch: EventBatch) -> None:
    """Count a batch that was stored, and keep its spans for the timeline."""
    if not batch.events:
        return
    with transaction.atomic():
        _keep_spans(batch)
        EngineState.objects.get_or_create(pk=EngineState.ONLY)
        EngineState.objects.filter(pk=EngineState.ONLY).update(
            events_ingested=F("events_ingested") + len(batch.events),
            ingested_at=timezone.now(),
            ingest_lag_seconds=max(0.0, time.time() - max(event.time for event in batch.events)),
        )


def _keep_spans(batch: EventBatch) -> None:
    spans = [(event, event.payload) for event in batch.events if isinstance(event.payload, Span)]
    named = {uuid.UUID(hex=event.job_id) for event, _ in spans}
    known = {job.hex: job for job in Job.objects.filter(pk__in=named).order_by().values_list("pk", flat=True)}
    insert_rows(
        StageSpan,
        ("job", "seq", "stage", "worker", "start", "end"),
        [
            (known[event.job_id], event.seq, span.stage, span.worker[:100], _moment(span.start), _moment(span.end))
            for event, span in spans
            if event.job_id in known
        ],
        ignore_conflicts=True,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def note_heartbeat() -> None:
    """The events worker works: broker, worker and database have all played their part."""
    with transaction.atomic():
        _locked_state()
        EngineState.objects.filter(pk=EngineState.ONLY).update(worker_seen_at=timezone.now())


def prune_spans() -> int:
    """Forget spans too old for any timeline; how many."""
    deleted, _ = StageSpan.objects.filter(end__lt=timezone.now() - KEEP_SPANS).delete()
    return deleted


def _locked_state() -> EngineState:
    EngineState.objects.get_or_create(pk=EngineState.ONLY)
    return EngineState.objects.select_for_update().get(pk=EngineState.ONLY)
