"""Endpoints, what they are told of, and what members choose to be told."""

from __future__ import annotations

import json

import pytest
from django.http import Http404

from engine.events import EventBatch
from portal.audit.models import AuditEntry
from portal.errors import Conflict, InvalidInput, NotAllowed, QuotaExceeded
from portal.jobs.services import ingest_events
from portal.sealing import get_sealer
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user
from portal.webhooks.models import Delivery, Endpoint, EventType, Mail
from portal.webhooks.services import (
    MAX_ENDPOINTS,
    change_endpoint,
    change_preference,
    create_endpoint,
    redeliver,
    send_ping,
)
from tests.portal.factories import make_batch, make_events, published, status
from tests.portal.jobs.test_create import create


def all_events(ours):
    return change_endpoint(
        tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk, events=list(EventType.values)
    )


def sent(ours):
    """Types and contents of what goes to the endpoint, the ping of the factory left out."""
    found = Delivery.objects.filter(endpoint=ours.endpoint).exclude(event_type="ping").order_by("created_at")
    return [(each.event_type, json.loads(each.body)["data"]) for each in found]


def whole_course(job, end="succeeded"):
    return [
        status("preparing", "Loading."),
        status("running", "Training."),
        status("paused", "Paused."),
        status("running", "Training."),
        published(job, 1),
        published(job, 2, final=True),
        status(end, "Done."),
    ]


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_the_course_of_a_job_is_told_once(ours, theirs, end):
    all_events(ours)
    job = create(ours)
    events = make_events(job, *whole_course(job, end))
    for _ in range(2):  # repeats
        for event in reversed(events):  # and the wrong way round
            ingest_events(batch=EventBatch(events=[event]))
    told = sent(ours)
    assert [name for name, _ in told] == ["job.started", "adapter.published", f"job.{end}"]
    started, adapter, ended = [data for _, data in told]
    assert (started["job"]["status"], started["job"]["name"]) == ("preparing", "second job")
    assert adapter["adapter"]["version"] == 2 and adapter["adapter"]["url"].endswith("/")
    assert (ended["job"]["status"], ended["job"]["reason"], ended["job"]["id"]) == (end, "Done.", str(job.pk))
    assert ended["job"]["url"] == f"http://localhost:8000/jobs/{job.pk}/"
    assert not Delivery.objects.filter(endpoint=theirs.endpoint).exclude(event_type="ping").exists()


def test_only_what_was_chosen_is_told(ours):
    job = create(ours)
    ingest_events(batch=make_batch(job, *whole_course(job, "failed")))
    assert [name for name, _ in sent(ours)] == ["job.failed"]


def test_an_endpoint_that_is_off_misses_it(ours):
    change_endpoint(tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk, enabled=False)
    job = create(ours)
    ingest_events(batch=make_batch(job, *whole_course(job, "failed")))
    assert sent(ours) == []
    with pytest.raises(Conflict, match="switched off"):
        send_ping(tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "http://10.0.0.1/"}, "url"),
        ({"url": ""}, "url"),
        ({"events": []}, "events"),
        ({"events": ["job.started", "job.exploded"]}, "events"),
        ({"description": "x" * 201}, "description"),
    ],
)
def test_wrong_endpoints_are_refused_at_the_field(ours, changes, field):
    values = {"url": "https://example.org/", "events": ["job.failed"], **changes}
    with pytest.raises(InvalidInput) as refused:
        create_endpoint(tenant=ours.tenant, user=ours.user, **values)
    assert [error.field for error in refused.value.fields] == [field]
    with pytest.raises(InvalidInput):
        change_endpoint(tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk, **changes)


def test_endpoints_are_limited(ours):
    for number in range(MAX_ENDPOINTS - 1):
        create_endpoint(tenant=ours.tenant, user=ours.user, url=f"https://example.org/{number}", events=["job.failed"])
    with pytest.raises(QuotaExceeded):
        create_endpoint(tenant=ours.tenant, user=ours.user, url="https://example.org/", events=["job.failed"])


def test_viewers_and_strangers(ours, theirs):
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    with pytest.raises(NotAllowed):
        create_endpoint(tenant=ours.tenant, user=viewer, url="https://example.org/", events=["job.failed"])
    with pytest.raises(Http404):
        send_ping(tenant=ours.tenant, user=ours.user, endpoint_id=theirs.endpoint.pk)
    with pytest.raises(Http404):
        change_preference(
            tenant=theirs.tenant, user=ours.user, jobs="own", on_success=True, on_failure=True, on_quota=True
        )


def test_a_message_on_its_way_is_not_sent_twice(ours):
    message = send_ping(tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk)
    with pytest.raises(Conflict, match="on its way"):
        redeliver(tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk, delivery_id=message.pk)


# --- mails -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "end", "mine", "theirs_too"),
    [
        (None, "failed", True, False),
        (None, "succeeded", False, False),
        (None, "cancelled", False, False),
        ({"on_success": True}, "succeeded", True, False),
        ({"on_success": True, "jobs": "all"}, "succeeded", True, True),
        ({"on_failure": False}, "failed", False, False),
        ({"jobs": "all"}, "failed", True, True),
    ],
)
def test_members_hear_of_the_end_of_jobs_as_they_chose(ours, choice, end, mine, theirs_too):
    """``mine``: of a job of one's own; ``theirs_too``: of another member's."""
    ada = create_user(username="ada", email="ada@example.org", password="x")
    add_member(tenant=ours.tenant, user=ada)
    if choice is not None:
        defaults = {"jobs": "own", "on_success": False, "on_failure": True, "on_quota": True}
        change_preference(tenant=ours.tenant, user=ada, **{**defaults, **choice})
    for owner, expected in ((ada, mine), (ours.user, theirs_too)):
        job = create(ours, user=owner, name=f"job of {owner}")
        ingest_events(batch=make_batch(job, status("running", "Training."), status(end, "Because.")))
        found = Mail.objects.filter(user=ada, subject__contains=job.name).first()
        assert (found is not None) is expected
        if found:
            assert "Because." in found.body and f"http://localhost:8000/jobs/{job.pk}/" in found.body


# --- pages and API ---------------------------------------------------------------------------------------------------


def test_the_secret_is_shown_once(browser, ours):
    values = {"url": "https://example.org/new", "events": ["job.failed", "job.started"], "description": "nightly"}
    page = browser.post("/webhooks/", values)
    endpoint = Endpoint.objects.get(url=values["url"])
    secret = get_sealer().open(endpoint.secret)
    assert (
        endpoint.secret.startswith("sealed:")
        and secret in page.content.decode()
        and "no-store" in page["Cache-Control"]
    )
    assert endpoint.events == ["job.started", "job.failed"]
    for address in ("/webhooks/", f"/webhooks/{endpoint.pk}/", f"/admin/webhooks/endpoint/{endpoint.pk}/change/"):
        assert secret not in browser.get(address).content.decode()
    rotated = browser.post(f"/webhooks/{endpoint.pk}/rotate/").content.decode()
    endpoint.refresh_from_db()
    new, old = (get_sealer().open(each) for each in (endpoint.secret, endpoint.old_secret))
    assert new in rotated and old == secret and old not in rotated


def test_errors_are_at_the_field(browser):
    page = browser.post("/webhooks/", {"url": "http://192.168.0.1/", "events": ["job.failed"]})
    assert page.status_code == 400 and "this is a private or local address" in page.content.decode()
    assert "at least one event" in browser.post("/webhooks/", {"url": "https://example.org/"}).content.decode()


def test_the_pages_of_an_endpoint(browser, ours):
    address = f"/webhooks/{ours.endpoint.pk}/"
    message = Delivery.objects.get(endpoint=ours.endpoint)
    assert "hx-get" not in browser.get(f"{address}deliveries/").content.decode()
    assert browser.post(f"{address}deliveries/{message.pk}/redeliver/").status_code == 302
    log = browser.get(f"{address}deliveries/").content.decode()
    assert "ping" in log and "hx-get" in log  # it looks again until the message has arrived
    page = browser.get(f"{address}deliveries/{message.pk}/").content.decode()
    assert message.message_id in page and "This is a test." in page
    browser.post(f"{address}switch/", {"enabled": "0"})
    assert "Switched off by a member." in browser.get(address).content.decode()
    browser.post(f"{address}switch/", {"enabled": "1"})
    ours.endpoint.refresh_from_db()
    assert ours.endpoint.enabled and ours.endpoint.disabled_reason == ""
    browser.post(address, {"url": "https://example.org/moved", "events": ["job.started"]})
    ours.endpoint.refresh_from_db()
    assert (ours.endpoint.url, ours.endpoint.events) == ("https://example.org/moved", ["job.started"])
    assert browser.post(f"{address}delete/").status_code == 302
    assert not Endpoint.objects.filter(pk=ours.endpoint.pk).exists()


def test_notifications_of_a_member(browser, ours, api):
    assert 'name="on_failure"' in browser.get("/notifications/").content.decode()
    browser.post("/notifications/", {"jobs": "all", "on_success": "on"})
    expected = {"jobs": "all", "on_success": True, "on_failure": False, "on_quota": False}
    assert api.get("/api/v1/notifications/").json() == expected
    changed = {**expected, "on_quota": True}
    assert api.put("/api/v1/notifications/", changed, "application/json").json() == changed
    wrong = api.put("/api/v1/notifications/", {**changed, "jobs": "some"}, "application/json")
    assert wrong.status_code == 400 and wrong.json()["error"]["fields"][0]["field"] == "jobs"


def test_the_api_of_endpoints(api, ours):
    body = {"url": "https://example.org/api", "events": ["job.failed"]}
    made = api.post("/api/v1/webhooks/", body, "application/json")
    assert made.status_code == 201
    address, secret = f"/api/v1/webhooks/{made.json()['id']}/", made.json()["secret"]
    assert "secret" not in api.get(address).json() and secret.startswith("whsec_")
    assert len(api.get("/api/v1/webhooks/").json()["results"]) == 2
    changed = api.patch(address, {"enabled": False}, "application/json").json()
    assert (changed["enabled"], changed["url"]) == (False, body["url"])
    assert api.post(f"{address}ping/").status_code == 409
    api.patch(address, {"enabled": True}, "application/json")
    assert api.post(f"{address}rotate/").json()["secret"] != secret
    message = api.post(f"{address}ping/")
    assert (message.status_code, message.json()["state"], message.json()["attempts"]) == (202, "pending", [])
    (listed,) = api.get(f"{address}deliveries/").json()["results"]
    detail = api.get(f"{address}deliveries/{listed['id']}/").json()
    assert (detail["body"]["type"], detail["message_id"]) == ("ping", message.json()["message_id"])
    assert api.post(f"{address}deliveries/{listed['id']}/redeliver/").status_code == 409
    assert api.delete(address).status_code == 204 and api.get(address).status_code == 404
    refused = api.post("/api/v1/webhooks/", {**body, "events": ["x"]}, "application/json")
    assert refused.status_code == 400 and refused.json()["error"]["fields"]


def test_the_log_costs_the_same_whatever_its_length(browser, ours, django_assert_max_num_queries):
    def add(count):
        Delivery.objects.bulk_create(
            Delivery(endpoint=ours.endpoint, event_type="ping", key=f"{count}-{n}", body="{}") for n in range(count)
        )

    add(3)
    with django_assert_max_num_queries(15) as few:
        browser.get(f"/webhooks/{ours.endpoint.pk}/")
    add(200)
    with django_assert_max_num_queries(len(few)):
        browser.get(f"/webhooks/{ours.endpoint.pk}/")


def test_changes_are_in_the_audit_log_without_secrets(browser, ours):
    address = f"/webhooks/{ours.endpoint.pk}/"
    browser.post(f"{address}rotate/")
    browser.post(f"{address}switch/", {"enabled": "0"})
    browser.post("/notifications/", {"jobs": "all"})
    browser.post(f"{address}delete/")
    entries = AuditEntry.objects.filter(tenant_id=ours.tenant.pk)
    actions = {
        "webhook.created",
        "webhook.secret_rotated",
        "webhook.changed",
        "notifications.changed",
        "webhook.deleted",
    }
    assert actions <= set(entries.values_list("action", flat=True))
    assert entries.get(action="webhook.changed").after == {"enabled": False}
    assert not any("whsec_" in str([entry.before, entry.after]) for entry in entries)
