"""The audit log: complete, append-only, in the transaction of the change, and outliving what it names."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.audit.models import ActorKind, AppendOnlyError, AuditEntry
from portal.audit.selectors import AuditFilter, list_actions, list_entries, read_page
from portal.audit.services import MASK, mask_secrets, record_change
from portal.datasets.services import create_dataset_version
from portal.errors import QuotaExceeded
from portal.jobs.services import cancel_job, create_job, pause_job
from portal.tenants.models import Role, Tenant
from portal.tenants.services import add_member, create_user
from tests.portal.factories import jsonl
from tests.portal.plans import assert_follows_index, only_sqlite


def actions(tenant):
    return [entry.action for entry in list_entries(tenant).order_by("id")]


def test_every_service_writes(ours):
    assert actions(ours.tenant) == [
        "tenant.created",
        "member.added",
        "dataset.uploaded",
        "reward.saved",
        "job.created",
        "reward.tried",
        "documents.uploaded",
        "environment_token.created",
        "webhook.created",
    ]
    before = len(actions(ours.tenant))
    pause_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)
    cancel_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)
    cancel_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)  # changes nothing
    assert actions(ours.tenant)[before:] == ["job.paused", "job.cancelled"]
    paused = AuditEntry.objects.get(action="job.paused")
    assert (paused.before, paused.after) == ({"wants_paused": False}, {"wants_paused": True})
    assert (paused.actor_kind, paused.actor_label, paused.object_id) == ("user", "ours", str(ours.job.pk))


def test_downloads_are_written_down(client, browser, ours):
    link = browser.get(f"/adapters/{ours.adapter.pk}/download/")["Location"]
    assert "adapter.downloaded" not in actions(ours.tenant)
    client.logout()
    client.head(link)
    assert "adapter.downloaded" not in actions(ours.tenant)
    client.get(link)
    entry = AuditEntry.objects.get(action="adapter.downloaded")
    assert (entry.actor_label, entry.object_label) == ("ours", ours.adapter.name)


def test_a_change_that_fails_leaves_no_entry(ours):
    ours.tenant.max_active_jobs = 1
    ours.tenant.save()
    before = actions(ours.tenant)
    with pytest.raises(QuotaExceeded):
        create_job(
            tenant=ours.tenant,
            user=ours.user,
            name="second",
            base_model_id=ours.job.base_model_id,
            dataset_version=ours.dataset_version,
            reward_version=ours.reward_version,
            settings={},
        )
    assert actions(ours.tenant) == before


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_nothing_is_written():
    user = create_user(username="ada", email="ada@example.org", password="x")
    with pytest.raises(RuntimeError, match="transaction"):
        record_change(tenant=None, user=user, action="user.changed", target=user)
    with transaction.atomic():
        record_change(tenant=None, user=user, action="user.changed", target=user)
        transaction.set_rollback(True)
    assert not AuditEntry.objects.exists()


def test_entries_are_never_changed(ours):
    entry = AuditEntry.objects.first()
    entry.action = "nothing.happened"
    for attempt in (
        entry.save,
        entry.delete,
        AuditEntry.objects.all().delete,
        lambda: AuditEntry.objects.update(action="x"),
        lambda: AuditEntry.objects.bulk_update([entry], ["action"]),
    ):
        with pytest.raises(AppendOnlyError):
            attempt()


def test_entries_outlive_what_they_name(ours):
    before = actions(ours.tenant)
    Tenant.objects.get(pk=ours.tenant.pk).delete()
    User.objects.all().delete()
    assert actions(ours.tenant) == before
    assert AuditEntry.objects.get(action="job.created").object_label == "first job"


def test_secrets_are_masked():
    seen = mask_secrets(
        {"password": "hunter2", "nested": {"api_token": "mrl_x", "rows": 3}, "hash": "", "x": "y" * 600}
    )
    assert seen["password"] == seen["nested"]["api_token"] == MASK
    assert (seen["nested"]["rows"], seen["hash"]) == (3, "")
    assert seen["x"].endswith("(600 characters)")


def test_who_acts(api, ours, admin_user):
    answer = api.post(f"/api/v1/jobs/{ours.job.pk}/pause/", headers={"X-Request-ID": "nightly-0001"})
    assert answer.status_code == 202
    entry = AuditEntry.objects.get(action="job.paused")
    assert (entry.actor_kind, entry.request_id, entry.address) == (ActorKind.TOKEN, "nightly-0001", "127.0.0.1")
    assert entry.actor_label.startswith("ours (all, mrl_")
    operator = Client()
    operator.force_login(admin_user, backend="django.contrib.auth.backends.ModelBackend")
    form = operator.get(f"/admin/tenants/tenant/{ours.tenant.pk}/change/").context["adminform"].form
    values = {name: value for name, value in form.initial.items() if value not in (None, False)}
    management = {f"memberships-{name}_FORMS": 0 for name in ("TOTAL", "INITIAL")}
    operator.post(
        f"/admin/tenants/tenant/{ours.tenant.pk}/change/",
        {**values, **management, "weight": 2.5, "audit_reason": "a big week"},
    )
    entry = AuditEntry.objects.get(action="tenant.changed")
    assert (entry.actor_kind, entry.actor_label, entry.tenant_id) == (ActorKind.ADMIN, "admin", ours.tenant.pk)
    assert (entry.before, entry.after) == ({"weight": 1.0}, {"weight": 2.5})
    assert entry.reason == "a big week"
    create_dataset_version(
        tenant=ours.tenant, user=ours.user, name="later", file=jsonl({"prompt": "?"}, {"prompt": "!"})
    )
    assert AuditEntry.objects.first().actor_kind == ActorKind.USER, "the request is over"


def test_admins_leave_a_trace_when_they_delete(ours, admin_client):
    member = ours.tenant.memberships.get()
    admin_client.post(f"/admin/tenants/membership/{member.pk}/delete/", {"post": "yes"})
    entry = AuditEntry.objects.get(action="membership.deleted")
    assert (entry.actor_kind, entry.before["role"]) == ("admin", "owner")


def test_filters(ours):
    entries = list(list_entries(ours.tenant))
    assert {e.action for e in list_entries(ours.tenant, AuditFilter(action="job"))} == {"job.created"}
    assert {e.action for e in list_entries(ours.tenant, AuditFilter(action="member.added"))} == {"member.added"}
    assert not list_entries(ours.tenant, AuditFilter(actor="nobody"))
    own = [e for e in entries if e.actor_label == "ours"]
    assert list(list_entries(ours.tenant, AuditFilter(actor="OUR"))) == own and 0 < len(own) < len(entries)
    assert [e.action for e in list_entries(ours.tenant, AuditFilter(target=str(ours.job.pk)))] == ["job.created"]
    today = datetime.now(UTC).date()
    assert len(list_entries(ours.tenant, AuditFilter(since=today, until=today))) == len(entries)
    assert not list_entries(ours.tenant, AuditFilter(until=today - timedelta(days=1)))
    assert not list_entries(ours.tenant, AuditFilter(since=date(2999, 1, 1)))


def test_pages_by_cursor(ours):
    every = list(list_entries(ours.tenant))
    first = read_page(ours.tenant, limit=2)
    pause_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)  # comes on top, moves nothing
    found, cursor = list(first.entries), first.next
    while cursor is not None:
        page = read_page(ours.tenant, before=cursor, limit=2)
        assert 1 <= len(page.entries) <= 2
        found, cursor = found + page.entries, page.next
    assert found == every


def test_the_page(browser, ours):
    page = browser.get("/audit/").content.decode()
    assert "job.created" in page and "first job" in page
    page = browser.get("/audit/?action=member").content.decode()
    assert "<strong>first job" not in page
    assert browser.get("/audit/?since=yesterday").status_code == 400
    assert "Nothing matches" in browser.get("/audit/?actor=nobody").content.decode()


def test_the_page_costs_the_same_however_long(browser, ours):
    def queries():
        with CaptureQueriesContext(connection) as captured:
            browser.get("/audit/")
        return len(captured)

    few = queries()
    for _ in range(20):
        pause_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)
        with transaction.atomic():
            record_change(tenant=ours.tenant, user=ours.user, action="job.changed", target=ours.job)
    assert queries() == few <= 15


def test_the_csv(browser, ours):
    with transaction.atomic():
        record_change(tenant=ours.tenant, user=ours.user, action="job.changed", target=ours.job, label="=HYPERLINK(1)")
    text = b"".join(browser.get("/audit/export.csv?action=job")).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["action"] for row in rows] == ["job.changed", "job.created"]
    assert rows[0]["object"] == "'=HYPERLINK(1)", "no formula"


@pytest.mark.parametrize("role", [Role.DEVELOPER, Role.VIEWER])
def test_only_owners_read_it(client, ours, role):
    person = create_user(username="person", email="person@example.org", password="x")
    add_member(tenant=ours.tenant, user=person, role=role)
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    for path in ("/audit/", "/audit/export.csv", "/settings/"):
        assert client.get(path).status_code == 403


def test_the_api(api, ours):
    found = api.get("/api/v1/audit/?limit=2").json()
    assert len(found["entries"]) == 2
    rest = api.get(f"/api/v1/audit/?before={found['next']}&limit=500").json()
    assert rest["next"] is None
    assert found["entries"][0]["id"] > rest["entries"][0]["id"]
    assert api.get("/api/v1/audit/?action=job").json()["entries"][0]["object"]["label"] == "first job"
    assert api.get("/api/v1/audit/?before=x").status_code == 400


def test_days_long_ago_are_found_by_the_ids_of_their_time(ours):
    """Ten days of one entry each; two entries of a day may have their ids the other way round."""
    entries = list(list_entries(ours.tenant).order_by("pk"))
    today = datetime.now(UTC).replace(hour=12)
    for number, entry in enumerate(reversed(entries)):
        QuerySet(AuditEntry).filter(pk=entry.pk).update(time=today - timedelta(days=number))
    older, newer = entries[2], entries[3]
    QuerySet(AuditEntry).filter(pk=older.pk).update(time=today - timedelta(days=len(entries) - 4))
    day = older_day = (today - timedelta(days=len(entries) - 4)).date()
    found = list_entries(ours.tenant, AuditFilter(since=day, until=older_day))
    assert list(found) == [newer, older]
    assert list(list_entries(ours.tenant, AuditFilter(until=day))) == list(reversed(entries[:4]))
    assert list(list_entries(ours.tenant, AuditFilter(since=day))) == list(reversed(entries[2:]))


@only_sqlite
@pytest.mark.parametrize(
    "chosen",
    [
        AuditFilter(),
        AuditFilter(action="job.created"),
        AuditFilter(since=date(2024, 1, 1), until=date(2024, 1, 2)),
        AuditFilter(until=date(2024, 1, 2)),
    ],
    ids=str,
)
def test_a_page_of_the_log_is_read_from_an_index_in_order(ours, chosen):
    assert_follows_index(list_entries(ours.tenant, chosen)[:51])


@only_sqlite
def test_where_a_day_begins_is_looked_up_in_an_index(ours):
    times = AuditEntry.objects.filter(tenant_id=ours.tenant.pk, time__lt=datetime.now(UTC))
    assert_follows_index(times.order_by("-time").values_list("pk")[:1], "audit_tenant_time")


def test_each_action_is_offered_once(ours):
    with transaction.atomic():
        for _ in range(3):
            record_change(tenant=ours.tenant, user=ours.user, action="job.changed", target=ours.job)
    with CaptureQueriesContext(connection) as captured:
        offered = list_actions(ours.tenant)
    assert offered == sorted(set(offered)) and "job.changed" in offered
    with connection.cursor() as cursor:
        cursor.execute(captured[0]["sql"])
        assert len(cursor.fetchall()) == len(offered)
