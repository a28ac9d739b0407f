"""Lists of jobs follow an index: SQLite sorts nothing and scans nothing to give a page."""

from __future__ import annotations

import pytest
from django.db import connection

from portal.jobs.models import Job
from portal.jobs.selectors import list_jobs

pytestmark = pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL plans by statistics")


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
