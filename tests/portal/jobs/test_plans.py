"""Lists of jobs follow an index: SQLite sorts nothing and scans nothing to give a page."""

from __future__ import annotations

import pytest

from engine.events import TERMINAL_STATUSES, Notice
from portal.engine_room.selectors import list_open_jobs
from portal.jobs.history import MESSAGE_TYPES, _latest, messages
from portal.jobs.models import OPEN_STATUSES, Job, Status
from portal.jobs.selectors import list_jobs
from portal.jobs.services import ingest_events
from tests.portal.factories import control, make_batch, published, step
from tests.portal.plans import assert_follows_index, only_sqlite

pytestmark = only_sqlite


@pytest.mark.parametrize(
    ("narrow", "order"),
    [
        ({}, ("-created_at",)),
        ({}, ("-created_at", "-pk")),
        ({"status": "failed"}, ("-created_at",)),
        ({"status": "failed"}, ("-created_at", "-pk")),
        ({"status": "failed"}, ("-finished_at",)),
    ],
)
def test_a_page_is_read_in_the_order_of_an_index(ours, narrow, order):
    plan = list_jobs(ours.tenant).filter(**narrow).order_by(*order)[:50].explain()
    assert "USING INDEX job_" in plan
    assert "TEMP B-TREE" not in plan
    assert "SCAN" not in plan


def test_without_an_index_it_would_be_seen(ours):
    assert "TEMP B-TREE" in Job.objects.filter(tenant=ours.tenant).order_by("reason")[:50].explain()


def test_jobs_that_have_not_ended_are_found_by_an_index(ours):
    """What looks at them every few seconds looks at no other."""
    assert set(OPEN_STATUSES) | TERMINAL_STATUSES == set(Status.values)
    assert not TERMINAL_STATUSES & set(OPEN_STATUSES)
    assert_follows_index(list_open_jobs().order_by(), "job_by_status")
    assert_follows_index(list_jobs(ours.tenant).filter(status__in=OPEN_STATUSES).order_by(), "tenant_id=? AND status=?")


def test_messages_are_read_from_the_end_of_an_index(ours):
    """Whatever lies between them; of a job with none, not a single event is read."""
    for name in (*MESSAGE_TYPES, "adapter"):
        assert_follows_index(_latest(ours.job, name, 30), "job_id=? AND type=?")


def test_the_result_and_changes_are_messages_and_only_the_latest_are_shown(ours):
    warning = Notice(level="warning", code="low", message="Low.")
    payloads = [control(1, steps=5), control(2, steps=5), warning, published(ours.job, 2, final=True)]
    ingest_events(batch=make_batch(ours.job, *payloads, step(2), first=4))
    ours.job.refresh_from_db()
    shown = [(event.seq, event.type) for event in messages(ours.job)]
    assert shown == [(7, "adapter"), (6, "notice"), (4, "control"), (1, "status")]
    assert [event.seq for event in messages(ours.job, limit=2)] == [7, 6]
