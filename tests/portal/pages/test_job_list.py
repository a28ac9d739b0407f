"""The list of jobs, narrowed by state and name."""

from __future__ import annotations

from django.test import Client

from portal.jobs.models import Job, Status
from portal.jobs.views import PAGE_SIZE
from tests.portal.factories import Owned


def add_jobs(ours: Owned, *names: str, status: str = Status.SUCCEEDED) -> None:
    fields = {field.attname: getattr(ours.job, field.attname) for field in Job._meta.fields if field.attname != "id"}
    Job.objects.bulk_create(Job(**{**fields, "name": name, "status": status, "idempotency_key": ""}) for name in names)


def test_a_part_of_the_name_in_any_case(browser: Client, ours: Owned) -> None:
    add_jobs(ours, "Sums, rank 8", "Sums, rank 16", "Capitals")
    text = browser.get("/jobs/?name=RANK").text
    assert "Sums, rank 8" in text and "Sums, rank 16" in text
    assert "Capitals" not in text
    assert 'value="RANK"' in text


def test_name_and_state_together(browser: Client, ours: Owned) -> None:
    add_jobs(ours, "Sums, rank 8")
    add_jobs(ours, "Sums, rank 16", status=Status.FAILED)
    text = browser.get("/jobs/?name=rank&status=failed").text
    assert "Sums, rank 16" in text and "Sums, rank 8" not in text
    assert "?status=succeeded&amp;name=rank" in text


def test_pages_and_live_updates_keep_what_was_asked_for(browser: Client, ours: Owned) -> None:
    add_jobs(ours, *(f"R&D {n}" for n in range(PAGE_SIZE + 1)), "Capitals")
    text = browser.get("/jobs/?name=R%26D").text
    assert "Page 1 of 2" in text
    assert 'href="?page=2&amp;name=R%26D"' in text
    assert 'hx-get="/jobs/?page=1&amp;name=R%26D"' in text
    assert browser.get("/jobs/?page=2&name=R%26D").text.count("R&amp;D") >= 1


def test_nothing_found_says_what_was_looked_for(browser: Client, ours: Owned) -> None:
    text = browser.get("/jobs/?name=<zzz>").text
    assert "has “&lt;zzz&gt;” in its name" in text
    assert "Show all" in text
