"""Quotas: refused at the door, warned of at 80 %, stopped at 100 %."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.db.models import Sum

from engine.events import EventBatch
from engine.spec import CONTROL_JOB
from portal.datasets.models import Dataset
from portal.datasets.services import create_dataset_version
from portal.environments.services import create_document_set
from portal.errors import QuotaExceeded
from portal.jobs.models import Job
from portal.jobs.selectors import get_job
from portal.jobs.services import cancel_job, extend_job, ingest_events, pause_job, resume_job
from portal.usage.enforcement import enforce_quotas
from portal.usage.meters import Meter, list_meters
from portal.usage.models import QuotaHold, QuotaKind, QuotaNotice, TenantQuotas, UsageRecord
from portal.usage.periods import Period
from portal.webhooks.models import Delivery, EventType, Mail
from portal.webhooks.services import change_endpoint
from tests.portal.factories import build_owned, control, jsonl, make_events, status
from tests.portal.jobs.test_create import create, ensure_bundled_base_model
from tests.portal.usage.test_usage import spend


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
    ours.upload.refresh_from_db()
    stored = ours.dataset_version.size_bytes + ours.document_set.size_bytes + ours.adapter.size_bytes
    stored += ours.upload.size_bytes
    assert found == {
        "active_jobs": 2,
        "queued_jobs": 1,
        "sampled_tokens": 300,
        "trained_tokens": 40,
        "accelerator_seconds": 1.5,
        "storage_bytes": stored,
        "reward_trials": 1,
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
    assert "by itself on 1 " in job.state_next and "kept" in job.state_next
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
    assert "as soon as there is room" in get_job(ours.tenant, ours.job.pk).state_next


def test_a_stop_that_was_cut_short_is_made_up_for(ours):
    limit(ours, max_trained_tokens=10)
    spend_now(ours.job, spend(2, trained=10))  # nothing that follows a commit runs here
    assert not Job.objects.get(pk=ours.job.pk).wants_paused
    assert enforce_quotas() == 1
    assert Job.objects.get(pk=ours.job.pk).wants_paused


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
