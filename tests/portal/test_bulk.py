"""Rows written in bulk are the rows the ORM writes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import F

from portal.adapters.models import AdapterVersion
from portal.bulk import insert_returning_ids, insert_rows, update_rows
from portal.engine_room.models import StageSpan
from portal.jobs.models import Job, JobEvent
from portal.jobs.projection import PROJECTED_FIELDS
from portal.jobs.stored import COLUMNS
from portal.progress.models import EvaluationRecord, StepRecord
from portal.progress.services import EVALUATION_FIELDS, STEP_FIELDS
from portal.rollouts.models import Episode, RolloutGroup
from portal.rollouts.services import EPISODE_FIELDS, GROUP_FIELDS
from tests.portal.factories import Owned

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def event(owned: Owned, seq: int, **payload: Any) -> tuple[Any, ...]:
    return (owned.job.pk, seq, "notice", NOON, payload)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (JobEvent, COLUMNS),
        (StepRecord, STEP_FIELDS),
        (EvaluationRecord, EVALUATION_FIELDS),
        (RolloutGroup, GROUP_FIELDS),
        (Episode, ("group", "position", *EPISODE_FIELDS)),
        (StageSpan, ("job", "seq", "stage", "worker", "start", "end")),
    ],
)
def test_every_column_is_named(model: Any, names: tuple[str, ...]) -> None:
    """An INSERT in bulk knows no defaults."""
    assert {*names, "id"} == {field.name for field in model._meta.concrete_fields}


def test_rows_equal_those_of_the_orm(ours: Owned) -> None:
    payload = {"text": 'ä"\\ 🙂', "number": 0.1, "none": None, "list": [1, {"a": True}]}
    insert_rows(JobEvent, COLUMNS, [event(ours, 101, **payload)])
    JobEvent.objects.create(job=ours.job, seq=102, type="notice", time=NOON, payload=payload)
    bulk, single = JobEvent.objects.filter(seq__gt=100).order_by("seq").values("job", "type", "time", "payload")
    assert bulk == single == {"job": ours.job.pk, "type": "notice", "time": NOON, "payload": payload}
    assert JobEvent.objects.filter(seq__gt=100, time=NOON, payload__number=0.1).count() == 2


def test_conflicts_are_left_out_only_where_asked(ours: Owned) -> None:
    insert_rows(JobEvent, COLUMNS, [event(ours, 101, first=True)])
    insert_rows(JobEvent, COLUMNS, [event(ours, 101, first=False), event(ours, 102)], ignore_conflicts=True)
    assert list(JobEvent.objects.filter(seq__gt=100).values_list("seq", "payload")) == [
        (101, {"first": True}),
        (102, {}),
    ]
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_rows(JobEvent, COLUMNS, [event(ours, 103), event(ours, 101)])
    assert not JobEvent.objects.filter(seq=103).exists()


@pytest.mark.parametrize("count", [0, 1, 1200])
def test_ids_come_in_the_order_of_the_rows(ours: Owned, count: int) -> None:
    rows = [
        (ours.job.pk, seq, NOON, 1, seq, "1+1?", "2", "d", 0, None, 0)
        for seq in range(100 + count, 100, -1)
    ]  # fmt: skip
    ids = insert_returning_ids(RolloutGroup, GROUP_FIELDS, rows)
    found = RolloutGroup.objects.in_bulk(ids)
    assert [found[each].seq for each in ids] == [row[1] for row in rows]


def test_updates_reach_their_rows_alone(ours: Owned, theirs: Owned) -> None:
    before = Job.objects.filter(pk=theirs.job.pk).values().get()
    job = Job.objects.defer("spec").get(pk=ours.job.pk)
    job.status, job.metrics, job.finished_at, job.accuracy, job.last_seq = "succeeded", {"loss": 0.5}, NOON, 0.25, 9
    update_rows(Job, PROJECTED_FIELDS, [job])
    stored = Job.objects.get(pk=ours.job.pk)
    assert [getattr(stored, name) for name in PROJECTED_FIELDS] == [getattr(job, name) for name in PROJECTED_FIELDS]
    assert stored.spec["job_id"] == ours.job.pk.hex
    assert Job.objects.filter(pk=theirs.job.pk).values().get() == before


def test_nothing_to_write_is_no_statement(ours: Owned, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        insert_rows(JobEvent, COLUMNS, [])
        update_rows(AdapterVersion, ["removed"], [])
        assert insert_returning_ids(RolloutGroup, GROUP_FIELDS, []) == []
    assert not JobEvent.objects.filter(job=ours.job, seq__gt=F("job__last_seq")).exists()
