"""Deleting a tenant: asked for by its name, undone for a week, and then nothing is left but the audit log."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.audit.models import AuditEntry
from portal.datasets.services import create_dataset_version
from portal.errors import Conflict, InvalidInput, NotAllowed
from portal.jobs.models import JobEvent
from portal.jobs.services import ingest_events
from portal.tenants.deletion import purge_due_tenants, request_deletion, undo_deletion
from portal.tenants.exports import create_export
from portal.tenants.models import Role, Tenant
from portal.tenants.services import add_member, create_user
from tests.portal.factories import jsonl, make_batch, status

LATER = timedelta(days=7, minutes=1)


def delete(owned):
    return request_deletion(tenant=owned.tenant, user=owned.user, confirmation=owned.tenant.name)


def end(job):
    job.refresh_from_db()
    ingest_events(batch=make_batch(job, status("cancelled", "Cancelled."), first=job.last_seq + 1))


def age(path):
    os.utime(path, (time.time() - 7200,) * 2)


def test_it_takes_an_owner_and_the_name(ours):
    with pytest.raises(InvalidInput) as caught:
        request_deletion(tenant=ours.tenant, user=ours.user, confirmation="ours")
    assert caught.value.fields[0].field == "confirmation"
    person = create_user(username="dev", email="dev@example.org", password="x")
    add_member(tenant=ours.tenant, user=person, role=Role.DEVELOPER)
    with pytest.raises(NotAllowed):
        request_deletion(tenant=ours.tenant, user=person, confirmation="Ours")
    ours.tenant.refresh_from_db()
    assert ours.tenant.delete_at is None


@pytest.mark.django_db(transaction=True)
def test_jobs_are_cancelled_at_once_and_nothing_new_begins(ours, commands):
    commands.clear()
    tenant = delete(ours)
    ours.job.refresh_from_db()
    assert ours.job.wants_cancelled
    assert [command[0] for command in commands] == ["engine.control_job"]
    with pytest.raises(Conflict, match="to be deleted"):
        create_dataset_version(tenant=tenant, user=ours.user, name="more", file=jsonl({"prompt": "?"}))
    with pytest.raises(Conflict):
        request_deletion(tenant=tenant, user=ours.user, confirmation="Ours")


def test_it_can_be_undone_until_then(ours):
    delete(ours)
    end(ours.job)
    purge_due_tenants(now=timezone.now() + timedelta(days=6))
    assert undo_deletion(tenant=ours.tenant, user=ours.user).delete_at is None
    purge_due_tenants(now=timezone.now() + LATER)
    assert Tenant.objects.filter(pk=ours.tenant.pk).exists()
    with pytest.raises(Conflict):
        undo_deletion(tenant=ours.tenant, user=ours.user)


def test_rows_and_files_go_and_the_audit_log_stays(ours, theirs):
    shared = theirs.dataset_version.path
    assert shared == ours.dataset_version.path, "the same rows have one file"
    own = create_dataset_version(
        tenant=ours.tenant, user=ours.user, name="own", file=jsonl({"prompt": "a"}, {"prompt": "b"})
    ).path
    age(own)
    age(shared)
    export = create_export(tenant=ours.tenant, user=ours.user)
    export.path.parent.mkdir(parents=True)
    export.path.write_bytes(b"zip")
    folder = ours.adapter.path
    delete(ours)
    end(ours.job)
    assert purge_due_tenants(now=timezone.now() + LATER) is False
    assert list(Tenant.objects.all()) == [theirs.tenant]
    assert not JobEvent.objects.filter(job=ours.job).exists()
    assert JobEvent.objects.filter(job=theirs.job).count() == 3
    assert not own.exists() and not export.path.exists() and not os.path.exists(folder)
    assert shared.exists() and os.path.exists(theirs.adapter.path)
    entries = AuditEntry.objects.filter(tenant_id=ours.tenant.pk)
    assert entries.first().action == "tenant.deleted" and entries.first().actor_kind == "system"
    assert entries.filter(action="job.created").exists()


def test_a_job_that_has_not_ended_is_waited_for(ours):
    delete(ours)
    assert purge_due_tenants(now=timezone.now() + LATER) is False
    assert Tenant.objects.filter(pk=ours.tenant.pk).exists()


def test_a_long_removal_goes_on_in_the_next_call(ours, monkeypatch):
    monkeypatch.setattr("portal.tenants.deletion.ROWS_AT_ONCE", 1)
    delete(ours)
    end(ours.job)
    calls = 1
    while purge_due_tenants(now=timezone.now() + LATER, seconds=0):
        calls += 1
        assert calls < 10
    assert calls > 3 and not Tenant.objects.filter(pk=ours.tenant.pk).exists()


def test_pages(browser, ours):
    assert browser.post("/settings/deletion/", {"confirmation": "wrong"}).status_code == 400
    page = browser.post("/settings/deletion/", {"confirmation": "Ours"}, follow=True).content.decode()
    assert "Keep the tenant" in page
    assert browser.get("/datasets/new/").status_code == 409
    browser.post("/settings/deletion/undo/")
    assert browser.get("/datasets/new/").status_code == 200
    browser.post("/settings/", {"name": "Renamed"})
    ours.tenant.refresh_from_db()
    assert ours.tenant.name == "Renamed"


def test_nobody_is_invited_before_it(browser, ours):
    assert "Invite somebody" in browser.get("/members/").content.decode()
    delete(ours)
    assert "Invite somebody" not in browser.get("/members/").content.decode()


@pytest.mark.parametrize("page", ["", "jobs/", "datasets/", "rewards/", "environments/", "webhooks/"])
def test_pages_offer_no_change_before_it(browser, ours, page):
    delete(ours)
    content = browser.get(f"/{page}").content.decode().partition("<main")[2]
    assert content and 'method="post"' not in content and "/new/" not in content


def test_api(api, ours):
    assert api.patch("/api/v1/tenant/", {"name": "New name"}, "application/json").json()["name"] == "New name"
    refused = api.post("/api/v1/tenant/deletion/", {"confirmation": "Ours"}, "application/json")
    assert refused.json()["error"]["fields"][0]["field"] == "confirmation"
    accepted = api.post("/api/v1/tenant/deletion/", {"confirmation": "New name"}, "application/json")
    assert accepted.status_code == 202 and accepted.json()["delete_at"]
    assert api.delete("/api/v1/tenant/deletion/").json()["delete_at"] is None
