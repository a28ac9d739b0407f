"""Exports: complete, made in stretches, begun anew after a crash, and fetched by a short-lived link."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.audit.models import AuditEntry
from portal.errors import Conflict, NotAllowed
from portal.tenants.exports import continue_export, create_export, sweep_exports
from portal.tenants.models import Role, TenantExport
from portal.tenants.services import add_member, create_user


def finish(export, seconds=60.0):
    while export.status == "running":
        continue_export(export_id=export.pk, slice_number=export.slice, seconds=seconds)
        export.refresh_from_db()
    return export


def test_everything_of_the_tenant_and_nothing_else(ours, theirs):
    export = finish(create_export(tenant=ours.tenant, user=ours.user))
    assert (export.status, export.parts_done) == ("ready", export.parts_total)
    with zipfile.ZipFile(export.path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        text = {name: archive.read(name).decode() for name in names}
    job = f"jobs/{ours.job.pk}"
    assert json.loads(text[f"{job}/job.json"])["spec"]["name"] == "first job"
    events = [json.loads(line) for line in text[f"{job}/events-00000001.jsonl"].splitlines()]
    assert [event["seq"] for event in events] == [1, 2, 3]
    (rows,) = [text[name] for name in names if name.startswith("datasets/") and name.endswith("v1.jsonl")]
    assert rows.encode() == ours.dataset_version.path.read_bytes()
    assert json.loads(text["adapters-0001.jsonl"])["name"] == ours.adapter.name
    assert json.loads(text["tenant.json"])["members"][0]["user__email"] == "ours@example.org"
    assert "job.created" in text["audit-0001.jsonl"]
    everything = "".join(text.values())
    assert str(theirs.job.pk) not in everything and "theirs" not in everything
    assert "hash" not in json.loads(text["tenant.json"])["api_tokens"]


def test_in_stretches(ours, commands):
    export = create_export(tenant=ours.tenant, user=ours.user)
    with pytest.raises(Conflict):
        create_export(tenant=ours.tenant, user=ours.user)
    continue_export(export_id=export.pk, slice_number=0, seconds=0)
    export.refresh_from_db()
    assert (export.slice, export.parts_done, export.status) == (1, 1, "running")
    continue_export(export_id=export.pk, slice_number=0, seconds=0)  # a repeat
    export.refresh_from_db()
    assert export.parts_done == 1
    with zipfile.ZipFile(finish(export, seconds=0).path) as archive:
        assert len(archive.namelist()) == len(set(archive.namelist())) > 5


def test_after_a_crash_it_begins_anew(ours):
    export = create_export(tenant=ours.tenant, user=ours.user)
    continue_export(export_id=export.pk, slice_number=0, seconds=0)
    export.path.write_bytes(b"half a file")
    TenantExport.objects.update(writing=True)
    export.refresh_from_db()
    finish(export)
    assert (export.status, export.attempt) == ("ready", 2)
    assert zipfile.ZipFile(export.path).testzip() is None
    TenantExport.objects.update(status="running", writing=True, attempt=3)
    continue_export(export_id=export.pk, slice_number=export.slice)
    export.refresh_from_db()
    assert export.status == "failed" and "interrupted" in export.error


def test_a_missing_file_fails_it_with_words(ours):
    ours.dataset_version.path.unlink()
    export = finish(create_export(tenant=ours.tenant, user=ours.user))
    assert export.status == "failed" and export.error
    create_export(tenant=ours.tenant, user=ours.user)


@pytest.mark.django_db(transaction=True)
def test_the_sweep_wakes_and_clears(ours, commands):
    export = create_export(tenant=ours.tenant, user=ours.user)
    commands.clear()
    sweep_exports()
    assert commands == []
    sweep_exports(now=timezone.now() + timedelta(minutes=3))
    assert commands == [("portal.continue_export", export.pk.hex, 0)]
    path = finish(export).path
    sweep_exports(now=timezone.now() + timedelta(days=8))
    assert not path.exists() and not TenantExport.objects.exists()


def test_pages_and_link(browser, client, ours):
    browser.post("/settings/exports/")
    export = TenantExport.objects.get()
    assert "hx-get" in browser.get(f"/settings/exports/{export.pk}/").content.decode()
    finish(export)
    assert "Download" in browser.get("/settings/").content.decode()
    link = browser.get(f"/settings/exports/{export.pk}/download/")["Location"]
    client.logout()
    answer = client.get(link)
    content = b"".join(answer)
    assert len(content) == int(answer["Content-Length"])
    assert "jobs/" in "".join(zipfile.ZipFile(io.BytesIO(content)).namelist())
    assert AuditEntry.objects.get(action="export.downloaded").actor_label == "ours"
    TenantExport.objects.update(expires_at=timezone.now())
    assert client.get(link).status_code == 403


def test_only_owners_export(ours):
    person = create_user(username="dev", email="dev@example.org", password="x")
    add_member(tenant=ours.tenant, user=person, role=Role.DEVELOPER)
    with pytest.raises(NotAllowed):
        create_export(tenant=ours.tenant, user=person)


def test_the_api_exports(api, ours):
    export = api.post("/api/v1/exports/").json()
    assert export["status"] == "running"
    link = f"/api/v1/exports/{export['id']}/link/"
    assert api.post(link).status_code == 409
    finish(TenantExport.objects.get())
    assert api.get(f"/api/v1/exports/{export['id']}/").json()["status"] == "ready"
    assert "/download/export/" in api.post(link).json()["url"]
