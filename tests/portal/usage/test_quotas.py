"""Quotas: refused at the door, warned of at 80 %, stopped at 100 %, changed by admins with a reason."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.db.models import Sum

from engine.events import EventBatch
from engine.spec import CONTROL_JOB
from portal.audit.models import AuditEntry
from portal.datasets.models import Dataset
from portal.datasets.services import create_dataset_version
from portal.environments.services import create_document_set
from portal.errors import InvalidInput, NotAllowed, QuotaExceeded
from portal.jobs.models import Job
from portal.jobs.selectors import get_job
from portal.jobs.services import cancel_job, extend_job, ingest_events, pause_job, resume_job
from portal.usage.enforcement import enforce_quotas
from portal.usage.meters import Meter, list_meters
from portal.usage.models import QuotaChange, QuotaHold, QuotaKind, QuotaNotice, TenantQuotas, UsageRecord
from portal.usage.periods import Period
from portal.usage.services import change_quotas
from portal.webhooks.models import Delivery, EventType, Mail
from portal.webhooks.services import change_endpoint
from tests.portal.factories import build_owned, control, jsonl, make_events, status
from tests.portal.jobs.test_create import create, ensure_bundled_base_model
from tests.portal.usage.test_usage import spend


@pytest.fixture
def admin(db):
    return get_user_model().objects.create_superuser("root", "root@example.org", "correct horse battery")


def limit(owned, **limits):
    quotas, _ = TenantQuotas.objects.update_or_create(tenant=owned.tenant, defaults=limits)
    return quotas


def spend_now(job, *payloads):
    """Further events of the job, as they happen now."""
    job.refresh_from_db()
    events = make_events(job, *payloads, first=job.last_seq + 1)
    ingest_events(batch=EventBatch(events=[event.model_copy(update={"time": time.time()}) for event in events]))
    job.refresh_from_db()


def meter(owned, kind):
    return next(each for each in list_meters(owned.tenant) if each.kind == kind)


# --- meters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "limit", "level", "percent"),
    [
        (79.9, 100, "ok", 79),
        (80, 100, "warning", 80),
        (99.99, 100, "warning", 99),
        (100, 100, "reached", 100),
        (0, 0, "reached", 100),
        (5, None, "unlimited", None),
    ],
)
def test_levels_of_a_meter(used, limit, level, percent):
    found = Meter(QuotaKind.SAMPLED_TOKENS, used, limit, None)
    assert (found.level, found.percent) == (level, percent)


def test_meters_count_what_there_is(ours, theirs):
    limit(ours, max_sampled_tokens=1000)
    spend_now(ours.job, spend(2, sampled=300, trained=40, seconds=1.5))
    create(ours)
    found = {each.kind: each.used for each in list_meters(ours.tenant)}
    stored = ours.dataset_version.size_bytes + ours.document_set.size_bytes + ours.adapter.size_bytes
    assert found == {
        "active_jobs": 2,
        "queued_jobs": 1,
        "sampled_tokens": 300,
        "trained_tokens": 40,
        "accelerator_seconds": 1.5,
        "storage_bytes": stored,
    }
    now = datetime.now(UTC)
    resets_at = meter(ours, "sampled_tokens").resets_at
    assert (resets_at.day, resets_at.hour, resets_at.tzinfo) == (1, 0, UTC) and resets_at > now
    assert meter(ours, "storage_bytes").resets_at is None


def test_the_same_rows_twice_are_stored_once(ours):
    before = meter(ours, "storage_bytes").used
    rows = ({"prompt": f"{n}+1?", "answer": n + 1} for n in range(10))
    create_dataset_version(tenant=ours.tenant, user=ours.user, name="again", file=jsonl(*rows))
    assert meter(ours, "storage_bytes").used == before


# --- at the door -----------------------------------------------------------------------------------------------------


def test_queued_jobs_are_limited(ours):
    limit(ours, max_queued_jobs=1)
    first = create(ours)
    with pytest.raises(QuotaExceeded, match="1 queued job"):
        create(ours)
    ingest_events(batch=EventBatch(events=make_events(first, status("running", "Training."))))
    create(ours)


def test_steps_of_one_job_are_limited(ours, api):
    limit(ours, max_steps_per_job=7)
    job = create(ours)
    with pytest.raises(QuotaExceeded) as refused:
        create(ours, settings={"training": {"steps": 8}})
    assert refused.value.fields[0].field == "training.steps" and "7" in refused.value.message
    with pytest.raises(QuotaExceeded) as refused:
        extend_job(tenant=ours.tenant, user=ours.user, job_id=job.pk, steps=8)
    assert refused.value.fields[0].field == "steps"
    extend_job(tenant=ours.tenant, user=ours.user, job_id=job.pk, steps=6)
    answer = api.patch(f"/api/v1/jobs/{job.pk}/", {"steps": 9}, "application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "quota_exceeded")


@pytest.mark.parametrize("kind", ["sampled_tokens", "trained_tokens", "accelerator_seconds"])
def test_no_job_starts_once_a_quota_is_used_up(ours, kind):
    limit(ours, **{f"max_{kind}": 10})
    spend_now(ours.job, spend(2, sampled=10, trained=10, seconds=10))
    with pytest.raises(QuotaExceeded, match="used up: 10 of 10") as refused:
        create(ours)
    assert "starts anew on 1 " in refused.value.hint
    limit(ours, **{f"max_{kind}": None})
    create(ours)


def test_what_was_spent_last_month_does_not_count(ours):
    limit(ours, max_sampled_tokens=10)
    ingest_events(batch=EventBatch(events=make_events(ours.job, spend(2, sampled=50), first=4)))  # in 2023
    create(ours)


def test_uploads_are_limited_by_what_is_stored(ours, browser):
    used = meter(ours, "storage_bytes").used
    limit(ours, max_storage_bytes=used + 300)
    small, large = jsonl({"prompt": "a", "answer": 1}), jsonl(*({"prompt": f"{n}?", "answer": n} for n in range(50)))
    create_dataset_version(tenant=ours.tenant, user=ours.user, name="small", file=small)
    with pytest.raises(QuotaExceeded, match="no room"):
        create_dataset_version(tenant=ours.tenant, user=ours.user, name="large", file=large)
    assert not Dataset.objects.filter(name="large").exists()
    with pytest.raises(QuotaExceeded, match="no room"):
        create_document_set(tenant=ours.tenant, user=ours.user, name="long", file=jsonl({"text": "word " * 200}))
    file = SimpleUploadedFile("l.jsonl", b'{"prompt": "%b", "answer": 1}\n' % (b"x" * 400))
    answer = browser.post("/datasets/new/", {"name": "large", "file": file, "held_out_percent": 10, "seed": 0})
    assert answer.status_code in (200, 400, 409)
    assert not Dataset.objects.filter(name="large").exists()


@pytest.mark.django_db(transaction=True)
def test_two_jobs_never_share_the_last_queued_place():
    ensure_bundled_base_model()
    owned = build_owned("busy")
    owned.tenant.max_active_jobs = 100
    owned.tenant.save()
    limit(owned, max_queued_jobs=2)
    outcomes, barrier = [], threading.Barrier(6)

    def submit():
        barrier.wait()
        try:
            outcomes.append(create(owned).status)
        except QuotaExceeded:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["queued"] * 2 + ["refused"] * 4


# --- while jobs run --------------------------------------------------------------------------------------------------


@pytest.fixture
def told(ours):
    """The endpoint hears of everything."""
    change_endpoint(tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk, events=EventType.values)

    def types():
        found = Delivery.objects.filter(endpoint=ours.endpoint, event_type__startswith="quota")
        return list(found.order_by("created_at").values_list("event_type", flat=True))

    return types


def test_a_warning_at_80_percent_once(ours, told, django_capture_on_commit_callbacks):
    limit(ours, max_sampled_tokens=1000)
    with django_capture_on_commit_callbacks(execute=True):
        spend_now(ours.job, spend(2, sampled=799))
    assert told() == []
    for number in (3, 4):
        with django_capture_on_commit_callbacks(execute=True):
            spend_now(ours.job, spend(number, sampled=1))
    assert told() == ["quota.warning"]
    notice = QuotaNotice.objects.get()
    assert (notice.kind, notice.level, notice.used, notice.period) == (
        "sampled_tokens",
        "warning",
        800,
        Period.of().first,
    )
    assert not ours.job.wants_paused
    mail = Mail.objects.get()
    assert mail.user == ours.user and "80 % used" in mail.subject and "800 of 1,000" in mail.body


def test_a_stop_with_a_reason_at_100_percent(ours, told, commands, django_capture_on_commit_callbacks):
    limit(ours, max_sampled_tokens=1000)
    waiting = create(ours)
    commands.clear()
    with django_capture_on_commit_callbacks(execute=True):
        spend_now(ours.job, spend(2, sampled=1000))
    assert told() == ["quota.reached"]  # past both at once: only what matters
    assert {(name, job_id) for name, job_id, *_ in commands if name == CONTROL_JOB} == {
        (CONTROL_JOB, job.pk.hex) for job in (ours.job, waiting)
    }
    assert enforce_quotas() == 0
    job = get_job(ours.tenant, ours.job.pk)
    assert job.state_label == "Pausing"
    assert "quota of sampled tokens is used up: 1,000 of 1,000" in job.state_reason
    assert "Resume it from 1 " in job.state_next and "kept" in job.state_next
    spend_now(ours.job, control(1), status("paused", "Paused on request.", "Resume it."))
    job = get_job(ours.tenant, ours.job.pk)
    assert (job.state_label, job.adapter_versions.filter(removed=False).count()) == ("Paused", 1)
    assert "used up" in job.state_reason
    with pytest.raises(QuotaExceeded, match="used up"):
        resume_job(tenant=ours.tenant, user=ours.user, job_id=job.pk)
    limit(ours, max_sampled_tokens=2000)
    job = resume_job(tenant=ours.tenant, user=ours.user, job_id=job.pk)
    assert (job.state_label, QuotaHold.objects.filter(job=job).count()) == ("Resuming", 0)


def test_a_job_that_is_still_pausing_cannot_slip_through(ours, django_capture_on_commit_callbacks):
    limit(ours, max_sampled_tokens=10)
    with django_capture_on_commit_callbacks(execute=True):
        spend_now(ours.job, spend(2, sampled=10))
    with pytest.raises(QuotaExceeded):
        resume_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)


def test_a_raise_warns_anew(ours, told, django_capture_on_commit_callbacks):
    limit(ours, max_sampled_tokens=100)
    with django_capture_on_commit_callbacks(execute=True):
        spend_now(ours.job, spend(2, sampled=85))
    limit(ours, max_sampled_tokens=1000)
    with django_capture_on_commit_callbacks(execute=True):
        spend_now(ours.job, spend(3, sampled=715))
    assert told() == ["quota.warning", "quota.warning"]


def test_others_and_those_paused_or_cancelled_by_a_member_are_left_alone(
    ours, theirs, django_capture_on_commit_callbacks
):
    limit(ours, max_sampled_tokens=10)
    paused, cancelled = create(ours), create(ours)
    pause_job(tenant=ours.tenant, user=ours.user, job_id=paused.pk)
    cancel_job(tenant=ours.tenant, user=ours.user, job_id=cancelled.pk)
    with django_capture_on_commit_callbacks(execute=True):
        spend_now(ours.job, spend(2, sampled=10))
    assert list(QuotaHold.objects.values_list("job_id", flat=True)) == [ours.job.pk]
    assert "asked for" in get_job(ours.tenant, paused.pk).state_reason
    assert get_job(ours.tenant, cancelled.pk).state_label == "Cancelling"
    theirs.job.refresh_from_db()
    assert not theirs.job.wants_paused


def test_full_storage_stops_too(ours):
    limit(ours, max_storage_bytes=1)
    assert enforce_quotas() == 1
    assert "storage" in get_job(ours.tenant, ours.job.pk).state_reason
    assert "once there is room" in get_job(ours.tenant, ours.job.pk).state_next


def test_a_stop_that_was_cut_short_is_made_up_for(ours):
    limit(ours, max_trained_tokens=10)
    spend_now(ours.job, spend(2, trained=10))  # nothing that follows a commit runs here
    assert not Job.objects.get(pk=ours.job.pk).wants_paused
    assert enforce_quotas() == 1
    assert Job.objects.get(pk=ours.job.pk).wants_paused


# --- changes ---------------------------------------------------------------------------------------------------------


def test_admins_change_quotas_with_a_reason(ours, admin):
    change = change_quotas(
        tenant=ours.tenant,
        user=admin,
        reason=" Paid for more. ",
        limits={"max_active_jobs": 9, "max_sampled_tokens": 5},
    )
    ours.tenant.refresh_from_db()
    assert (ours.tenant.max_active_jobs, ours.tenant.quotas.max_sampled_tokens) == (9, 5)
    assert (change.reason, change.changed_by_name) == ("Paid for more.", "root")
    assert change.before == {"max_active_jobs": 4, "max_sampled_tokens": None}
    assert change.after == {"max_active_jobs": 9, "max_sampled_tokens": 5}
    assert change_quotas(tenant=ours.tenant, user=admin, reason="again", limits={"max_active_jobs": 9}) is None


@pytest.mark.parametrize(
    ("limits", "reason", "field"),
    [
        ({"max_active_jobs": 1}, " ", "reason"),
        ({"max_active_jobs": None}, "why", "max_active_jobs"),
        ({"max_queued_jobs": -1}, "why", "max_queued_jobs"),
        ({"max_queued_jobs": 2**31}, "why", "max_queued_jobs"),
        ({"weight": 1}, "why", "weight"),
    ],
)
def test_wrong_changes_are_refused(ours, admin, limits, reason, field):
    with pytest.raises(InvalidInput) as refused:
        change_quotas(tenant=ours.tenant, user=admin, reason=reason, limits=limits)
    assert refused.value.fields[0].field == field
    assert not QuotaChange.objects.exists()


def test_owners_cannot_change_quotas(ours):
    with pytest.raises(NotAllowed):
        change_quotas(tenant=ours.tenant, user=ours.user, reason="please", limits={"max_active_jobs": 9})


def test_the_admin_page_asks_for_a_reason(client, ours, admin):
    client.force_login(admin, backend="django.contrib.auth.backends.ModelBackend")
    fields = {
        "tenant": ours.tenant.pk,
        "max_active_jobs": 6,
        "max_dataset_bytes": 10_000,
        "max_dataset_rows": 100,
        "max_sampled_tokens": 1000,
    }
    refused = client.post("/admin/usage/tenantquotas/add/", fields)
    assert refused.status_code == 200 and "This field is required" in refused.content.decode()
    assert client.post("/admin/usage/tenantquotas/add/", {**fields, "reason": "Trial."}).status_code == 302
    ours.tenant.refresh_from_db()
    assert (ours.tenant.max_active_jobs, ours.tenant.quotas.max_sampled_tokens) == (6, 1000)
    page = client.get(f"/admin/usage/tenantquotas/{ours.tenant.pk}/change/")
    assert 'name="max_active_jobs" value="6"' in page.content.decode()
    tenant = client.get(f"/admin/tenants/tenant/{ours.tenant.pk}/change/").content.decode()
    assert 'name="max_active_jobs"' not in tenant and 'name="weight"' in tenant


# --- shown -----------------------------------------------------------------------------------------------------------


def test_the_page_shows_meters_and_why_quotas_changed(browser, ours, admin):
    change_quotas(tenant=ours.tenant, user=admin, reason="Trial.", limits={"max_sampled_tokens": 1000})
    spend_now(ours.job, spend(2, sampled=900))
    enforce_quotas()
    page = browser.get("/usage/").content.decode()
    assert "900 of 1,000" in page and "meter--warning" in page and "Starts anew on 1 " in page
    assert "Trial." in page and "no limit → 1,000" in page
    assert "80 % of the quota was passed" in page


def test_the_home_page_shows_what_is_limited(browser, ours):
    limit(ours, max_sampled_tokens=1000)
    spend_now(ours.job, spend(2, sampled=1000))
    page = browser.get("/").content.decode()
    assert "1,000 of 1,000" in page and "Used up" in page
    assert "Trained tokens" not in page


def test_the_api_shows_quotas(api, ours):
    limit(ours, max_sampled_tokens=1000, max_steps_per_job=50)
    spend_now(ours.job, spend(2, sampled=900))
    answer = api.get("/api/v1/quotas/").json()
    (found,) = [each for each in answer["meters"] if each["kind"] == "sampled_tokens"]
    assert (found["used"], found["limit"], found["level"]) == (900, 1000, "warning") and found["resets_at"]
    assert answer["limits"]["max_steps_per_job"] == 50


def test_the_tenant_s_own_api_rate(api, ours, theirs):
    limit(ours, max_api_requests_per_minute=2)
    assert [api.get("/api/v1/jobs/").status_code for _ in range(3)] == [200, 200, 429]
    answer = api.post("/api/v1/jobs/", {}, "application/json")
    assert answer.status_code == 429 and int(answer["Retry-After"]) >= 1
    assert "All API tokens of a tenant together may make 2" in answer.json()["error"]["message"]


def test_an_estimate_tells_what_is_left(api, ours):
    limit(ours, max_sampled_tokens=10, max_steps_per_job=3)
    spend_now(ours.job, spend(2, sampled=10))
    body = {
        "base_model": ours.job.base_model_id,
        "dataset_version": str(ours.dataset_version.pk),
        "reward_version": str(ours.reward_version.pk),
        "settings": {"training": {"steps": 4}},
    }
    answer = api.post("/api/v1/jobs/estimate/", body, "application/json").json()
    said = " ".join(check["message"] for check in answer["checks"])
    assert "Sampled tokens: 10 of 10 are used" in said and "Steps of one job" in said
    assert answer["can_start"] is False


def test_changes_and_stops_are_in_the_audit_log(ours, admin):
    change_quotas(tenant=ours.tenant, user=admin, reason="Trial.", limits={"max_sampled_tokens": 10})
    spend_now(ours.job, spend(2, sampled=10))
    enforce_quotas()
    entries = AuditEntry.objects.filter(tenant_id=ours.tenant.pk)
    changed = entries.get(action="quotas.changed")
    assert (changed.reason, changed.actor_label) == ("Trial.", "root")
    assert changed.after == {"limits": "max_sampled_tokens=10"}
    stopped = entries.get(action="job.paused")
    assert (stopped.actor_kind, stopped.object_id) == ("system", str(ours.job.pk)) and "used up" in stopped.reason


@pytest.mark.django_db(transaction=True)
def test_spending_and_changing_a_job_never_wait_for_each_other():
    """Ingestion holds the job and writes rows that refer to its tenant; a change holds the tenant and wants the job."""
    ensure_bundled_base_model()
    owned = build_owned("busy")
    failures = []
    events = [  # each on a day of its own, and so in a new row
        event.model_copy(update={"time": event.time + 86_400 * number})
        for number, event in enumerate(make_events(owned.job, *[spend(n) for n in range(2, 42)], first=4))
    ]

    def ingest():
        for event in events:
            ingest_events(batch=EventBatch(events=[event]))

    def change():
        for number in range(40):
            extend_job(tenant=owned.tenant, user=owned.user, job_id=owned.job.pk, steps=100 + number)

    def run(work):
        try:
            work()
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[work]) for work in (ingest, change, change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert UsageRecord.objects.filter(job=owned.job).aggregate(steps=Sum("steps"))["steps"] == 41
