"""Usage is what the events say, each counted once."""

from __future__ import annotations

import csv
import random
from datetime import UTC, date, datetime

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test.utils import CaptureQueriesContext

from engine.events import EventBatch, Span
from portal.jobs.services import ingest_events
from portal.tenants.services import add_member, create_user
from portal.usage import selectors
from portal.usage.export import _page
from portal.usage.models import UsageRecord
from portal.usage.periods import Period
from tests.portal.factories import START, build_owned, evaluation, make_events, step
from tests.portal.jobs.test_create import create, ensure_bundled_base_model
from tests.portal.plans import only_sqlite

NOVEMBER = Period(date(2023, 11, 1))
"""``START`` is 2023-11-14 22:13:20 UTC."""


def spend(number, sampled=100, trained=50, seconds=2.5):
    return step(number, tokens_sampled=sampled, tokens_trained=trained, accelerator_seconds=seconds)


def evaluate_span(tokens):
    return Span(stage="evaluate", worker="rollout", start=START, end=START + 1, tokens=tokens)


def events_of(job):
    """Two steps and an evaluation before midnight, a step after it. The job's events 1 to 3 have come already."""
    payloads = [spend(2), evaluation(0.5, 2), evaluate_span(30), spend(3), spend(4, sampled=7, trained=3, seconds=1)]
    events = make_events(job, *payloads, first=4)
    after_midnight = datetime(2023, 11, 15, 0, 0, 1, tzinfo=UTC).timestamp()
    return [*events[:-1], events[-1].model_copy(update={"time": after_midnight})]


def amounts(record):
    return (
        record.steps,
        record.evaluations,
        record.tokens_sampled,
        record.tokens_trained,
        pytest.approx(record.accelerator_seconds),
    )


# The job's first step, of the factory, says nothing of tokens.
FIRST_DAY = (3, 1, 230, 100, 5.0)
SECOND_DAY = (1, 0, 7, 3, 1.0)


def check(job):
    first, second = UsageRecord.objects.filter(job=job).order_by("day")
    assert (first.day, amounts(first)) == (date(2023, 11, 14), FIRST_DAY)
    assert (second.day, amounts(second)) == (date(2023, 11, 15), SECOND_DAY)
    assert (first.tenant, first.member, first.job_name) == (job.tenant, job.created_by, job.name)


def test_events_are_counted_by_their_day(ours):
    ingest_events(batch=EventBatch(events=events_of(ours.job)))
    check(ours.job)


@pytest.mark.parametrize("seed", range(5))
def test_repeats_cuts_and_shuffles_change_nothing(ours, seed):
    chooser = random.Random(seed)
    events = events_of(ours.job) * 2
    chooser.shuffle(events)
    while events:
        size = chooser.randint(1, 4)
        ingest_events(batch=EventBatch(events=events[:size]))
        events = events[size:]
    check(ours.job)


def test_a_rebuild_repairs_what_is_wrong(ours, theirs, capsys):
    ingest_events(batch=EventBatch(events=events_of(ours.job)))
    call_command("rebuild_usage")
    assert "2 job(s) counted, 0 of them corrected." in capsys.readouterr().out
    UsageRecord.objects.filter(job=ours.job, day=date(2023, 11, 14)).update(tokens_sampled=1)
    UsageRecord.objects.filter(job=ours.job, day=date(2023, 11, 15)).delete()
    call_command("rebuild_usage")
    assert "2 job(s) counted, 1 of them corrected." in capsys.readouterr().out
    check(ours.job)


def test_usage_outlives_job_and_member(ours):
    ingest_events(batch=EventBatch(events=events_of(ours.job)))
    before = selectors.get_totals(ours.tenant, NOVEMBER)
    ours.job.delete()
    ours.user.delete()
    after = selectors.get_totals(ours.tenant, NOVEMBER)
    assert (after.tokens_sampled, after.steps) == (before.tokens_sampled, before.steps) == (237, 4)
    (row,) = selectors.list_usage_by_member(ours.tenant, NOVEMBER)
    assert row["member_name"] == "ours"


@pytest.mark.django_db(transaction=True)
def test_what_was_spent_before_the_update_is_counted(commands):
    ensure_bundled_base_model()
    owned = build_owned("old")
    ingest_events(batch=EventBatch(events=events_of(owned.job)))
    UsageRecord.objects.all().delete()
    executor = MigrationExecutor(connection)
    executor.migrate([("usage", "0001_initial")])
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    check(owned.job)


def test_totals_by_day_job_and_member(ours, theirs):
    other = create_user(username="ada", email="ada@example.org", password="correct horse battery")
    add_member(tenant=ours.tenant, user=other)
    second = create(ours, user=other, name="second")
    ingest_events(batch=EventBatch(events=events_of(ours.job)))
    ingest_events(batch=EventBatch(events=make_events(second, spend(1, seconds=100))))
    ingest_events(batch=EventBatch(events=events_of(theirs.job)))
    totals = selectors.get_totals(ours.tenant, NOVEMBER)
    assert (totals.jobs, totals.steps, totals.tokens_sampled, totals.tokens_trained) == (2, 5, 337, 153)
    assert totals.accelerator_seconds == pytest.approx(106)
    days = selectors.list_days(ours.tenant, NOVEMBER)
    assert len(days) == 30
    assert {day.day: spent.tokens_sampled for day, spent in days.items() if spent.jobs} == {14: 330, 15: 7}
    by_job = [
        (row["job_id"], row["member"], row["steps"]) for row in selectors.list_usage_by_job(ours.tenant, NOVEMBER)
    ]
    assert by_job == [(second.pk, "ada", 1), (ours.job.pk, "ours", 4)]
    by_member = [(row["member_name"], row["jobs"]) for row in selectors.list_usage_by_member(ours.tenant, NOVEMBER)]
    assert by_member == [("ada", 1), ("ours", 1)]
    assert selectors.get_totals(ours.tenant, NOVEMBER.following).jobs == 0


def test_the_page_of_a_month(browser, ours):
    ingest_events(batch=EventBatch(events=events_of(ours.job)))
    page = browser.get("/usage/?month=2023-11&metric=tokens_sampled").content.decode()
    assert "November 2023" in page and "first job" in page
    assert page.count("<rect") == 2 and "14 Nov: 230" in page
    assert "Dec 2023" in page  # on to the next month
    empty = browser.get("/usage/").content.decode()
    assert "Nothing was spent" in empty
    for nonsense in ("x", "2023-13", "9999-01"):
        assert browser.get(f"/usage/?month={nonsense}").status_code == 200


def read(answer):
    """The whole of an answer, streamed or not."""

    async def collect():
        return b"".join([chunk async for chunk in answer.streaming_content])

    return async_to_sync(collect)() if answer.streaming else answer.content


def test_the_export_holds_every_record_and_no_formula(browser, api, ours, theirs):
    ours.job.name = "=1+1"
    ours.job.save()
    UsageRecord.objects.filter(job=ours.job).delete()
    ingest_events(batch=EventBatch(events=events_of(ours.job)))
    ingest_events(batch=EventBatch(events=events_of(theirs.job)))
    for answer in (
        browser.get("/usage/export.csv?month=2023-11"),
        api.get("/api/v1/usage/export/?month=2023-11"),
    ):
        assert answer["Content-Type"].startswith("text/csv")
        rows = list(csv.DictReader(read(answer).decode().splitlines()))
        assert [(row["day"], row["job"], row["tokens_sampled"]) for row in rows] == [
            ("2023-11-14", "'=1+1", "230"),
            ("2023-11-15", "'=1+1", "7"),
        ]


def test_the_api_says_the_same(api, ours):
    ingest_events(batch=EventBatch(events=events_of(ours.job)))
    usage = api.get("/api/v1/usage/?month=2023-11").json()
    assert (usage["month"], usage["totals"]["tokens_sampled"], len(usage["days"])) == ("2023-11", 237, 30)
    assert usage["members"][0]["member"] == "ours"
    records = api.get("/api/v1/usage/records/?month=2023-11").json()
    assert [record["tokens_trained"] for record in records["results"]] == [100, 3]
    wrong = api.get("/api/v1/usage/?month=lately")
    assert wrong.status_code == 400 and wrong.json()["error"]["fields"][0]["field"] == "month"


@pytest.mark.parametrize("address", ["/usage/?month=2023-11", "/usage/export.csv?month=2023-11"])
def test_ten_thousand_jobs_cost_no_more_queries(browser, ours, django_assert_max_num_queries, address):
    UsageRecord.objects.bulk_create(
        UsageRecord(
            tenant=ours.tenant,
            job_name=f"job {number}",
            member=ours.user,
            member_name="ours",
            day=date(2023, 11, 1 + number % 30),
            tokens_sampled=number,
        )
        for number in range(10_000)
    )
    with django_assert_max_num_queries(22):
        answer = browser.get(address)
        assert answer.status_code == 200
        content = read(answer)
    assert b"job 9999" in content


def test_periods():
    december = Period(date(2026, 12, 1))
    assert december.following == Period(date(2027, 1, 1)) and december.following.previous == december
    assert december.resets_at == datetime(2027, 1, 1, tzinfo=UTC) and december.last == date(2026, 12, 31)
    assert Period.of(datetime(2026, 12, 31, 23, 59, tzinfo=UTC)) == december
    assert Period.parse("2026-12") == december and Period.parse("2026-1x") is None


def test_the_export_goes_by_day_page_after_page(browser, ours, monkeypatch):
    """Pages of two: each begins where the one before ended, in the middle of a day too."""
    monkeypatch.setattr("portal.usage.export.PAGE", 2)
    days = [5, 1, 1, 5, 1, 3]
    UsageRecord.objects.bulk_create(
        UsageRecord(tenant=ours.tenant, job_name=f"job {number}", day=date(2023, 10, day))
        for number, day in enumerate(days)
    )
    rows = list(csv.DictReader(read(browser.get("/usage/export.csv?month=2023-10")).decode().splitlines()))
    assert [row["job"] for row in rows] == [f"job {number}" for number in (1, 2, 4, 5, 0, 3)]


@only_sqlite
def test_a_page_of_the_export_is_read_from_an_index(ours):
    with CaptureQueriesContext(connection) as captured:
        _page(ours.tenant, NOVEMBER, UsageRecord(pk=1, day=date(2023, 11, 2)))
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + captured[-1]["sql"])
        plan = " ".join(row[3] for row in cursor.fetchall())
    assert "USING INDEX usage_usage_tenant" in plan and "TEMP B-TREE" not in plan
