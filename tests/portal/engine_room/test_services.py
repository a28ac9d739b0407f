"""What the operator wants of the engine, and what it says of itself."""

import threading
import time
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.http import Http404
from django.utils import timezone

from engine.spec import DRAIN_ENGINE, SCALE_POOL
from portal.audit.models import AuditEntry
from portal.base_models.services import BUNDLED_ID
from portal.engine_room.models import DrainWish, EngineState, PoolWish, StageSpan
from portal.engine_room.outbox import send_wishes
from portal.engine_room.selectors import STALE_AFTER, WORKER_STALE_AFTER, read_state
from portal.engine_room.services import (
    KEEP_SPANS,
    drain_engine,
    prune_spans,
    resume_engine,
    scale_pool,
    store_report,
)
from portal.engine_room.tasks import beat
from portal.errors import InvalidInput, NotAllowed
from portal.jobs.tasks import ingest_events
from tests.portal.engine_room.conftest import drained, make_report
from tests.portal.factories import make_batch, span

AT_ONCE = timedelta(0)


@pytest.fixture
def sent(django_capture_on_commit_callbacks, commands):
    """Do something, and see what commands it sent."""

    def run(act):
        commands.clear()
        with django_capture_on_commit_callbacks(execute=True):
            act()
        return list(commands)

    return run


def test_draining_and_its_undo_are_sent_once_each_and_audited(operator_user, sent):
    (command,) = sent(lambda: drain_engine(user=operator_user, reason=" new GPUs. "))
    assert command == (DRAIN_ENGINE, {"revision": 1, "draining": True, "reason": "new GPUs"})
    assert sent(lambda: drain_engine(user=operator_user, reason="new GPUs")) == [], "it is so already"
    (command,) = sent(lambda: resume_engine(user=operator_user))
    assert command == (DRAIN_ENGINE, {"revision": 2, "draining": False, "reason": ""})
    first, second = AuditEntry.objects.filter(action__startswith="engine.").order_by("id")
    assert (first.action, first.reason, first.actor_label) == ("engine.drained", "new GPUs", "operator")
    assert (second.action, second.before["draining"], second.after["draining"]) == ("engine.resumed", True, False)


def test_a_reason_is_needed(operator_user):
    for reason in ("", " . ", "x" * 301):
        with pytest.raises(InvalidInput) as refused:
            drain_engine(user=operator_user, reason=reason)
        assert refused.value.fields[0].field == "reason"
    assert not DrainWish.objects.exists()


def test_scaling(operator_user, ours, sent):
    command = sent(lambda: scale_pool(user=operator_user, base_model_id=BUNDLED_ID, rollout_workers=3))
    assert command == [(SCALE_POOL, BUNDLED_ID, {"revision": 1, "rollout_workers": 3})]
    assert sent(lambda: scale_pool(user=operator_user, base_model_id=BUNDLED_ID, rollout_workers=3)) == []
    entry = AuditEntry.objects.get(action="pool.scaled")
    assert (entry.object_id, entry.after) == (BUNDLED_ID, {"rollout_workers": 3})
    for wrong in (0, 257):
        with pytest.raises(InvalidInput):
            scale_pool(user=operator_user, base_model_id=BUNDLED_ID, rollout_workers=wrong)
    with pytest.raises(Http404):
        scale_pool(user=operator_user, base_model_id="nothing", rollout_workers=1)


def test_looking_gives_no_right_to_change(looker, ours):
    for act in (
        lambda: drain_engine(user=looker, reason="x"),
        lambda: resume_engine(user=looker),
        lambda: scale_pool(user=looker, base_model_id=BUNDLED_ID, rollout_workers=2),
    ):
        with pytest.raises(NotAllowed):
            act()


def test_wishes_are_sent_again_until_a_report_shows_them(operator_user, ours, sent):
    sent(lambda: drain_engine(user=operator_user, reason="new GPUs"))
    sent(lambda: scale_pool(user=operator_user, base_model_id=BUNDLED_ID, rollout_workers=2))
    assert send_wishes() == 0, "sent a moment ago"
    assert send_wishes(older_than=AT_ONCE) == 2
    store_report(report=make_report(drain=drained(1), pool_revisions={}))
    assert send_wishes(older_than=AT_ONCE) == 1
    store_report(report=make_report(drain=drained(1), pool_revisions={BUNDLED_ID: 1}))
    assert send_wishes(older_than=AT_ONCE) == 0
    # An engine whose memory was lost reports an earlier revision, or none, and is told again.
    store_report(report=make_report())
    assert send_wishes(older_than=AT_ONCE) == 2


def test_a_wish_the_broker_did_not_take_is_sent_by_the_next_beat(operator_user, commands, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr("portal.engine_room.outbox.send_command", lambda *_: False)
        drain_engine(user=operator_user, reason="new GPUs")
        assert send_wishes() == 0
    beat()
    assert [command[0] for command in commands] == [DRAIN_ENGINE]


def test_the_newest_report_stays(ours):
    now = time.time()
    assert store_report(report=make_report(time=now, trials=1))
    assert not store_report(report=make_report(time=now - 1, trials=2))
    assert read_state().report.trials == 1


def test_an_old_report_is_not_about_now(reported):
    assert read_state().is_heard
    EngineState.objects.update(heard_at=timezone.now() - STALE_AFTER - timedelta(seconds=1))
    assert not read_state().is_heard and read_state().report is not None


def test_a_report_of_another_version_is_no_report(reported):
    EngineState.objects.update(report={"time": 1.0, "unheard_of": True})
    assert read_state().report is None


def test_the_heartbeat(db):
    assert not read_state().is_worker_alive
    beat()
    assert read_state().is_worker_alive
    EngineState.objects.update(worker_seen_at=timezone.now() - WORKER_STALE_AFTER - timedelta(seconds=1))
    assert not read_state().is_worker_alive


def test_ingestion_is_counted_and_spans_are_kept_once(ours):
    batch = make_batch(ours.job, span("rollout"), span("train"), first=4)
    for _ in range(2):
        ingest_events(batch.model_dump_json())
    state = read_state()
    assert state.events_ingested == 4
    assert state.ingest_lag_seconds == pytest.approx(time.time() - batch.events[-1].time, abs=60)
    assert [(kept.stage, kept.seq) for kept in StageSpan.objects.order_by("seq")] == [("rollout", 4), ("train", 5)]


def test_spans_of_jobs_that_are_gone_stop_nothing(ours):
    batch = make_batch(ours.job, span(), first=4)
    ours.job.delete()
    ingest_events(batch.model_dump_json())
    assert not StageSpan.objects.exists()


def test_old_spans_are_forgotten(ours):
    now = timezone.now()
    for seq, age in ((1, KEEP_SPANS + timedelta(minutes=1)), (2, timedelta(0))):
        StageSpan.objects.create(job=ours.job, seq=seq, stage="train", worker="w", start=now - age, end=now - age)
    assert prune_spans() == 1
    assert StageSpan.objects.get().seq == 2


@pytest.mark.django_db(transaction=True)
def test_two_operators_at_once_make_two_revisions():
    users = [User.objects.create_superuser(name) for name in ("ada", "eve")]
    barrier = threading.Barrier(2)

    def run(user):
        barrier.wait()
        try:
            drain_engine(user=user, reason=user.username)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[user]) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert DrainWish.objects.get().revision == 2
    assert not PoolWish.objects.exists()
