"""The timeline of all stages."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.engine_room.models import StageSpan
from portal.engine_room.timeline import LANE, STAGES, WIDTH, build_timeline, union_seconds

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds):
    return NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([], 0),
        ([(0, 10)], 10),
        ([(0, 10), (10, 15)], 15),
        ([(0, 10), (5, 15), (6, 7)], 15),
        ([(0, 10), (20, 25)], 15),
    ],
)
def test_the_time_in_use(intervals, seconds):
    assert union_seconds((at(start), at(end)) for start, end in intervals) == seconds


def add(job, stage, start, end, seq=[0]):  # noqa: B006 (a counter)
    seq[0] += 1
    now = timezone.now()
    StageSpan.objects.create(
        job=job, seq=seq[0], stage=stage, worker="w",
        start=now - timedelta(seconds=start), end=now - timedelta(seconds=end),
    )  # fmt: skip


def test_stages_over_tenants(ours, theirs):
    add(ours.job, "rollout", 240, 120)
    add(theirs.job, "rollout", 180, 60)  # beside the first: a lane of its own
    add(ours.job, "rollout", 60, 30)  # after both: the first lane again
    add(ours.job, "train", 400, 250)  # reaches into the window of 300 s by 50 s
    add(ours.job, "train", 1000, 900)
    timeline = build_timeline(minutes=5)
    rows = {row.stage: row for row in timeline.rows}
    assert list(rows) == list(STAGES)
    assert rows["rollout"].busy == pytest.approx(210 / 300, abs=0.01)
    assert rows["rollout"].at_once == pytest.approx(270 / 210, abs=0.02)
    assert [bar.y for bar in rows["rollout"].bars] == [0, LANE, 0]
    assert [bar.x for bar in rows["rollout"].bars] == pytest.approx([WIDTH * n / 300 for n in (60, 120, 240)], abs=5)
    assert rows["rollout"].bars[0].title == "Ours: first job, rollout, 120.0 s"
    assert rows["train"].busy == pytest.approx(50 / 300, abs=0.01)
    assert len(rows["train"].bars) == 1 and rows["train"].bars[0].x == 0
    assert (rows["publish"].busy, rows["publish"].bars) == (0, [])
    assert timeline.tenants == [("Ours", 0), ("Theirs", 1)]


def test_one_query_however_many_spans(ours, theirs):
    def queries():
        with CaptureQueriesContext(connection) as captured:
            build_timeline(minutes=15)
        return len(captured)

    add(ours.job, "train", 60, 50)
    assert queries() == 1
    for start in range(60, 120):
        add((ours if start % 2 else theirs).job, "rollout", start, start - 1)
    assert queries() == 1


def test_the_index_on_the_end_is_used(ours):
    query = StageSpan.objects.filter(end__gte=timezone.now()).order_by("-end")
    if connection.vendor == "sqlite":
        assert "end" in query.explain() and "SCAN" not in query.explain()
    assert any(index.fields == ["end"] for index in StageSpan._meta.indexes)
