"""The operator's lists of what there are millions of: counted only so far, found by an index, never sorted."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal import large_tables_admin
from portal.jobs.models import JobEvent
from portal.large_tables_admin import AtLeast, CappedPaginator
from tests.portal.factories import add_rollout
from tests.portal.plans import only_sqlite

LISTS = [
    "/admin/jobs/jobevent/",
    "/admin/rollouts/rolloutgroup/",
    "/admin/progress/steprecord/",
    "/admin/adapters/adapterversion/",
    "/admin/usage/usagerecord/",
    "/admin/webhooks/delivery/",
    "/admin/audit/auditentry/",
]


@pytest.fixture
def operator(client: Client, admin_user) -> Client:
    client.force_login(admin_user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@only_sqlite
@pytest.mark.parametrize("address", LISTS)
def test_a_list_sorts_nothing_and_counts_only_so_far(ours, operator, address):
    add_rollout(ours)
    with CaptureQueriesContext(connection) as captured:
        assert operator.get(address).status_code == 200
    model = address.split("/")[-2]
    of_list = [query["sql"] for query in captured if f'"{model}"' in query["sql"].replace("_", '"').lower()]
    assert of_list
    with connection.cursor() as cursor:
        for statement in of_list:
            cursor.execute("EXPLAIN QUERY PLAN " + statement.replace("%", "%%"))
            plan = " ".join(row[3] for row in cursor.fetchall())
            assert "TEMP B-TREE" not in plan, statement
            assert "COUNT(" not in statement or "LIMIT" in statement, statement


def test_counting_is_given_up(ours, monkeypatch):
    monkeypatch.setattr(large_tables_admin, "COUNTED", 2)
    events = JobEvent.objects.filter(job=ours.job)
    counted = CappedPaginator(events, 10).count
    assert (counted, str(counted), events.count()) == (2, "2+", 3)
    assert str(CappedPaginator(events.filter(seq__lte=2), 10).count) == "2"
    assert str(AtLeast(10_000)) == "10,000+"


def test_the_page_says_that_there_are_more(ours, operator, monkeypatch):
    monkeypatch.setattr(large_tables_admin, "COUNTED", 2)
    assert "2+ job events" in operator.get("/admin/jobs/jobevent/").content.decode()


def test_events_of_one_job(ours, theirs, operator):
    """By its id, however it is written; only then can they be narrowed to a type."""

    def shown(query):
        page = operator.get("/admin/jobs/jobevent/", query)
        return [(event.job_id, event.seq) for event in page.context["cl"].result_list]

    every = [(ours.job.pk, 3), (ours.job.pk, 2), (ours.job.pk, 1)]
    assert shown({"q": str(ours.job.pk)}) == shown({"q": ours.job.pk.hex}) == every
    assert shown({"job__id__exact": str(ours.job.pk)}) == every
    assert shown({"job__id__exact": str(ours.job.pk), "type": "step"}) == [(ours.job.pk, 2)]
    assert shown({"q": "no id"}) == []
    assert "By type" not in operator.get("/admin/jobs/jobevent/").content.decode()


def test_a_job_leads_to_what_there_is_of_it_and_is_not_deleted(ours, operator):
    page = operator.get("/admin/jobs/job/").content.decode()
    for name in ("jobs/jobevent", "adapters/adapterversion", "rollouts/rolloutgroup"):
        link = f"/admin/{name}/?job__id__exact={ours.job.pk}"
        assert link in page
        assert operator.get(link).status_code == 200
    assert operator.get(f"/admin/jobs/job/{ours.job.pk}/delete/").status_code == 403


def test_the_log_of_one_tenant(ours, theirs, operator):
    link = f"/admin/audit/auditentry/?tenant_id={ours.tenant.pk}"
    assert link in operator.get("/admin/tenants/tenant/").content.decode()
    entries = operator.get(link).context["cl"].result_list
    assert {entry.tenant_id for entry in entries} == {ours.tenant.pk}
    found = operator.get("/admin/audit/auditentry/?q=first+job").context["cl"].result_list
    assert {entry.object_label for entry in found} == {"first job"}
