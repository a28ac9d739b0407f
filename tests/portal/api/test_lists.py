"""Pages by cursor and filters of lists."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from portal.jobs.models import Job
from tests.portal.factories import Owned

JOBS = "/api/v1/jobs/"


def copy_job(job: Job, count: int, **changes: Any) -> None:
    """More jobs like ``job``, each a second older than the one before."""
    now = job.created_at
    fields = {field.attname: getattr(job, field.attname) for field in Job._meta.fields if field.attname != "id"}
    jobs = [Job(**{**fields, "name": f"copy {n}", "idempotency_key": "", **changes}) for n in range(count)]
    Job.objects.bulk_create(jobs, batch_size=500)
    for n, made in enumerate(jobs, start=1):
        made.created_at = now - timedelta(seconds=n)
    Job.objects.bulk_update(jobs, ["created_at"], batch_size=500)


def names(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [item["name"] for item in answer.json()["results"]]


def test_pages_follow_each_other_whatever_is_added_meanwhile(api: Client, ours: Owned) -> None:
    copy_job(ours.job, 5)
    first = api.get(JOBS, {"page_size": 2})
    assert names(first) == ["first job", "copy 0"]
    assert first.json()["previous"] is None
    copy_job(ours.job, 1, name="newcomer", created_at=timezone.now())
    Job.objects.filter(name="newcomer").update(created_at=timezone.now() + timedelta(seconds=9))
    second = api.get(first.json()["next"])
    third = api.get(second.json()["next"])
    assert names(second) + names(third) == ["copy 1", "copy 2", "copy 3", "copy 4"]
    assert third.json()["next"] is None
    assert names(api.get(second.json()["previous"])) == ["first job", "copy 0"]


def test_entries_made_at_the_same_moment(api: Client, ours: Owned) -> None:
    copy_job(ours.job, 7)
    Job.objects.update(created_at=ours.job.created_at)
    found, address = [], f"{JOBS}?page_size=3"
    while address:
        answer = api.get(address)
        found += names(answer)
        address = answer.json()["next"]
    assert sorted(found) == sorted(["first job", *(f"copy {n}" for n in range(7))])


def test_filters_narrow_and_stay_in_the_next_address(api: Client, ours: Owned) -> None:
    copy_job(ours.job, 4, status="failed")
    assert names(api.get(JOBS, {"status": "running"})) == ["first job"]
    assert len(names(api.get(JOBS, {"status": ["running", "failed"]}))) == 5
    assert names(api.get(JOBS, {"name": "COPY 3"})) == ["copy 3"]
    page = api.get(JOBS, {"status": "failed", "page_size": 3}).json()
    assert names(api.get(page["next"])) == ["copy 3"]
    assert names(api.get(JOBS, {"base_model": "another"})) == []
    assert len(names(api.get(JOBS, {"dataset": str(ours.dataset_version.dataset_id)}))) == 5
    assert len(names(api.get(JOBS, {"reward_version": str(ours.reward_version.pk)}))) == 5


def test_filters_by_time_are_half_open(api: Client, ours: Owned) -> None:
    copy_job(ours.job, 3)
    shown = {item["name"]: item["created_at"] for item in api.get(JOBS).json()["results"]}
    moment = shown["copy 1"]
    assert parse_datetime(moment) is not None
    assert names(api.get(JOBS, {"created_after": moment})) == ["first job", "copy 0", "copy 1"]
    assert names(api.get(JOBS, {"created_before": moment})) == ["copy 2"]


@pytest.mark.parametrize(
    "query",
    [
        {"status": "sleeping"},
        {"created_after": "yesterday"},
        {"dataset": "sums"},
        {"page_size": "0"},
        {"page_size": "201"},
        {"page_size": "many"},
        {"cursor": "nonsense"},
        {"cursor": "bz0tMQ"},
    ],
)
def test_faulty_queries_name_their_field(api: Client, query: dict[str, str]) -> None:
    answer = api.get(JOBS, query)
    assert answer.status_code == 400
    assert answer.json()["error"]["fields"][0]["field"].partition(".")[0] == next(iter(query))


@pytest.mark.parametrize(
    ("path", "query", "count"),
    [
        ("adapters", {"final": "false"}, 1),
        ("adapters", {"final": "true"}, 0),
        ("adapters", {"job": "00000000-0000-0000-0000-000000000000"}, 0),
        ("datasets", {"name": "um"}, 1),
        ("datasets", {"name": "diff"}, 0),
        ("reward-trials", {"state": "queued"}, 1),
        ("reward-trials", {"state": "done"}, 0),
        ("members", {"role": "owner"}, 1),
        ("members", {"role": "viewer"}, 0),
        ("environments/documents", {"name": "man"}, 1),
        ("environments/tokens", {"name": "x"}, 0),
    ],
)
def test_filters_of_other_lists(api: Client, ours: Owned, path: str, query: dict[str, str], count: int) -> None:
    assert len(api.get(f"/api/v1/{path}/", query).json()["results"]) == count


def test_ten_thousand_jobs_cost_as_many_queries_as_one(
    api: Client, browser: Client, ours: Owned, django_assert_num_queries: Any, django_assert_max_num_queries: Any
) -> None:
    """On the first page, on one far behind, and on the pages for people."""
    api.get(JOBS)  # the token's last use is noted once a minute
    browser.get("/jobs/")
    counts = {}
    for jobs in (0, 10_000):
        if jobs:
            copy_job(ours.job, jobs, status="succeeded")
        for client, path in ((api, JOBS), (api, f"{JOBS}?status=succeeded"), (browser, "/jobs/"), (browser, "/")):
            with django_assert_max_num_queries(40) as queries:
                assert client.get(path).status_code == 200
            counts.setdefault(path, []).append(len(queries))
    assert {path: found for path, found in counts.items() if found[0] != found[1]} == {}
    address = f"{JOBS}?page_size=200"
    for _ in range(3):
        address = api.get(address).json()["next"]
    with django_assert_num_queries(counts[JOBS][0]):
        assert len(names(api.get(address))) == 200
    assert len(names(api.get(JOBS, {"name": "copy 9999"}))) == 1
