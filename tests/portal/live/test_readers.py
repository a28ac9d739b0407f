"""The cursor of a tenant's stream: nothing missed, nothing twice, and it does not grow."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.jobs.models import Job
from portal.jobs.services import ingest_events
from portal.live.readers import OVERLAP, TenantReader
from tests.portal.factories import Owned, make_batch, rollout, status, step

WHICH = {"types": None, "exclude": ("span",)}


def reader(owned: Owned, cursor: str = "") -> TenantReader:
    return TenantReader(owned.tenant, cursor=cursor, **WHICH)  # type: ignore[arg-type]


def seqs(found: TenantReader) -> list[int]:
    return [message.data["seq"] for message in found.read().messages]


def test_each_message_carries_the_cursor_after_it(ours: Owned) -> None:
    whole = reader(ours)
    ingest_events(batch=make_batch(ours.job, rollout(2), rollout(2), step(2), first=4))
    messages = whole.read().messages
    assert [message.data["seq"] for message in messages] == [4, 5, 6]
    assert seqs(reader(ours, messages[0].id)) == [5, 6]
    assert seqs(reader(ours, messages[1].id)) == [6]
    assert seqs(reader(ours, messages[2].id)) == []


def test_pages_go_on_without_a_gap(ours: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portal.live.readers.PAGE_EVENTS", 2)
    found = reader(ours)
    ingest_events(batch=make_batch(ours.job, *[rollout(2)] * 5, first=4))
    pages = [found.read() for _ in range(3)]
    assert [[message.data["seq"] for message in page.messages] for page in pages] == [[4, 5], [6, 7], [8]]
    assert [page.more for page in pages] == [True, True, False]


def test_a_finished_job_leaves_the_cursor_once_it_is_old_and_sent(ours: Owned) -> None:
    found = reader(ours)
    ingest_events(batch=make_batch(ours.job, status("succeeded", "Done."), first=4))
    assert seqs(found) == [4]
    assert ours.job.pk.hex in found.cursor  # young: its creation might not have been seen without it
    Job.objects.update(created_at=timezone.now() - 2 * OVERLAP)
    assert seqs(found) == []
    assert ours.job.pk.hex not in found.cursor
    assert seqs(reader(ours, found.cursor)) == []


def test_a_job_that_came_and_ended_while_nobody_listened(ours: Owned, theirs: Owned) -> None:
    Job.objects.update(created_at=timezone.now() - timedelta(hours=1))
    cursor = reader(ours).cursor
    Job.objects.filter(pk=ours.job.pk).update(created_at=timezone.now())
    cursor = cursor.partition(":")[0] + ":"  # as if the job had not been there
    ingest_events(batch=make_batch(ours.job, status("succeeded", "Done."), first=4))
    ingest_events(batch=make_batch(theirs.job, status("succeeded", "Done."), first=4))
    assert seqs(reader(ours, cursor)) == [1, 2, 3, 4]


@pytest.mark.parametrize("cursor", ["", "x", "1", "1:x", "1:" + "0" * 32, "1:" + "0" * 32 + ".1,", "9" * 12 + ":"])
def test_cursors_that_are_none(ours: Owned, cursor: str) -> None:
    if not cursor:
        assert seqs(reader(ours)) == []
        return
    with pytest.raises(ValueError, match="cursor"):
        reader(ours, cursor)
