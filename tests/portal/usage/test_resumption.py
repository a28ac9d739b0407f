"""Jobs that a quota paused go on by themselves; those that a person paused never do."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from engine.spec import CONTROL_JOB
from portal.audit.models import AuditEntry
from portal.errors import QuotaExceeded
from portal.jobs.models import Job
from portal.jobs.selectors import count_active_jobs, get_job
from portal.jobs.services import cancel_job, pause_job, resume_job
from portal.tenants.models import Tenant
from portal.usage.enforcement import enforce_quotas
from portal.usage.models import QuotaHold
from portal.usage.periods import Period
from portal.usage.services import change_quotas
from portal.usage.tasks import enforce_quotas as enforce_quotas_task
from portal.webhooks.models import Delivery, EventType, Mail
from portal.webhooks.services import change_endpoint
from tests.portal.factories import build_owned, control, status
from tests.portal.jobs.test_create import create, ensure_bundled_base_model
from tests.portal.usage.test_quotas import limit, meter, spend_now
from tests.portal.usage.test_usage import spend

PAUSED = status("paused", "Paused on request.", "Resume it.")


def hold(owned, *jobs, sampled=10):
    """Use up a quota of as many tokens; the jobs are paused by the portal, and the engine has done so."""
    limit(owned, max_sampled_tokens=sampled)
    spend_now(owned.job, spend(2, sampled=sampled))
    enforce_quotas()
    for job in (owned.job, *jobs):
        job.refresh_from_db()
        spend_now(job, control(job.control_revision, steps=job.steps), PAUSED)


def next_month(monkeypatch):
    following = Period.of().following
    monkeypatch.setattr(
        "portal.usage.periods.timezone.now",
        lambda: datetime(following.first.year, following.first.month, 1, 0, 1, tzinfo=UTC),
    )


def wants(*jobs):
    return [Job.objects.get(pk=job.pk).wants_paused for job in jobs]


@pytest.fixture
def admin(db):
    return get_user_model().objects.create_superuser("root", "root@example.org", "correct horse battery")


def test_jobs_go_on_when_the_period_starts_anew(ours, commands, monkeypatch, django_capture_on_commit_callbacks):
    second = create(ours)
    hold(ours, second)
    enforce_quotas()
    assert wants(ours.job, second) == [True, True], "not before"
    assert "goes on by itself on 1 " in get_job(ours.tenant, ours.job.pk).state_next
    next_month(monkeypatch)
    commands.clear()
    with django_capture_on_commit_callbacks(execute=True):
        enforce_quotas_task()
    assert wants(ours.job, second) == [False, False]
    sent = {job_id: wish["paused"] for name, job_id, wish in commands if name == CONTROL_JOB}
    assert sent == {ours.job.pk.hex: False, second.pk.hex: False}
    job = get_job(ours.tenant, ours.job.pk)
    assert (job.state_label, job.hold) == ("Resuming", None)
    assert job.state_reason.startswith("The quota of sampled tokens has started anew: 0 of 10.")
    assert enforce_quotas() == 0 and wants(job, second) == [False, False]


def test_jobs_go_on_when_an_admin_raises_the_quota(ours, admin, django_capture_on_commit_callbacks):
    change_endpoint(tenant=ours.tenant, user=ours.user, endpoint_id=ours.endpoint.pk, events=EventType.values)
    hold(ours)
    Mail.objects.all().delete()
    with django_capture_on_commit_callbacks(execute=True):
        change_quotas(tenant=ours.tenant, user=admin, reason="Paid.", limits={"max_sampled_tokens": 1000})
    assert wants(ours.job) == [False]
    entry = AuditEntry.objects.get(action="job.resumed")
    assert (entry.actor_kind, entry.object_id) == ("system", str(ours.job.pk))
    assert entry.reason == "The quota of sampled tokens was raised from 10 to 1,000."
    told = json.loads(Delivery.objects.get(event_type="quota.resumed").body)["data"]
    assert (told["quota"]["kind"], told["quota"]["limit"]) == ("sampled_tokens", 1000)
    assert [job["id"] for job in told["jobs"]] == [str(ours.job.pk)]
    mail = Mail.objects.get()
    assert ours.job.name in mail.body and "has room again" in mail.subject


def test_a_limit_that_is_taken_away_lets_them_go_on_too(ours, admin, django_capture_on_commit_callbacks):
    hold(ours)
    with django_capture_on_commit_callbacks(execute=True):
        change_quotas(tenant=ours.tenant, user=admin, reason="Paid.", limits={"max_sampled_tokens": None})
    assert wants(ours.job) == [False]
    assert "no longer limited" in get_job(ours.tenant, ours.job.pk).state_reason


def test_a_raise_that_is_not_enough_changes_nothing(ours):
    hold(ours, sampled=10)
    limit(ours, max_sampled_tokens=10, max_trained_tokens=1)
    spend_now(ours.job, spend(3, trained=5))
    limit(ours, max_sampled_tokens=1000, max_trained_tokens=1)
    enforce_quotas()
    assert wants(ours.job) == [True]
    assert "quota of trained tokens is used up" in get_job(ours.tenant, ours.job.pk).state_reason, "what stops it now"


def test_what_a_person_paused_stays_paused(ours, monkeypatch):
    """Before the quota did, after it did (on the page and over the API), and cancelled ones too."""
    before, after, cancelled = create(ours), create(ours), create(ours)
    pause_job(tenant=ours.tenant, user=ours.user, job_id=before.pk)
    hold(ours, after, cancelled)
    job = pause_job(tenant=ours.tenant, user=ours.user, job_id=after.pk)
    assert (job.hold, job.wants_paused, job.state_reason) == (None, True, "Paused on request.")
    assert AuditEntry.objects.filter(action="job.paused", object_id=str(after.pk), actor_kind="user").exists()
    cancel_job(tenant=ours.tenant, user=ours.user, job_id=cancelled.pk)
    next_month(monkeypatch)
    enforce_quotas()
    assert wants(before, after, cancelled, ours.job) == [True, True, True, False]


def test_a_job_that_was_resumed_and_paused_again_by_a_person_stays_so(ours, monkeypatch):
    hold(ours)
    limit(ours, max_sampled_tokens=1000)
    resume_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)
    pause_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)
    next_month(monkeypatch)
    enforce_quotas()
    assert wants(ours.job) == [True]


def test_the_page_offers_to_keep_a_job_paused(browser, ours):
    hold(ours)
    assert "Keep paused" in browser.get(f"/jobs/{ours.job.pk}/").content.decode()
    answer = browser.post(f"/jobs/{ours.job.pk}/pause/", follow=True).content.decode()
    assert "stays paused until somebody resumes it" in answer and "Keep paused" not in answer
    assert not QuotaHold.objects.exists()


def test_they_wait_for_places_and_say_so(ours, monkeypatch):
    """Two places: the job of the higher priority first, then the oldest; the third when a place is free."""
    urgent, third = create(ours), create(ours)
    hold(ours, urgent, third)
    Job.objects.filter(pk=urgent.pk).update(wanted_priority=5)
    Tenant.objects.update(max_active_jobs=2)
    next_month(monkeypatch)
    enforce_quotas()
    assert wants(urgent, ours.job, third) == [False, False, True]
    job = get_job(ours.tenant, third.pk)
    assert job.state_reason.endswith("All 2 places for active jobs are taken.")
    assert job.state_next == "It goes on by itself as soon as a place is free."
    cancel_job(tenant=ours.tenant, user=ours.user, job_id=urgent.pk)
    spend_now(urgent, status("cancelled", "Cancelled."))
    enforce_quotas()
    assert wants(third) == [False]


def test_a_job_that_has_not_given_up_its_place_needs_none(ours, monkeypatch):
    limit(ours, max_sampled_tokens=10)
    spend_now(ours.job, spend(2, sampled=10))
    enforce_quotas()  # the engine has not paused it yet
    Tenant.objects.update(max_active_jobs=1)
    next_month(monkeypatch)
    enforce_quotas()
    assert wants(ours.job) == [False]


def test_storage_needs_real_room_or_another_limit(ours):
    """Else a job would go on and stop with every step."""
    used = meter(ours, "storage_bytes").used
    limit(ours, max_storage_bytes=used)
    enforce_quotas()
    assert wants(ours.job) == [True]
    ours.document_set.size_bytes -= 1
    ours.document_set.save()
    enforce_quotas()
    assert wants(ours.job) == [True], "hardly any room"
    limit(ours, max_storage_bytes=used + 1)
    enforce_quotas()
    assert wants(ours.job) == [False], "the limit was changed"


@pytest.mark.django_db(transaction=True)
def test_no_race_gives_more_places_than_there_are(monkeypatch):
    """Sweeps, members who resume and members who start jobs, all at once; two places, three paused jobs."""
    ensure_bundled_base_model()
    owned = build_owned("busy")
    others = [create(owned), create(owned)]
    hold(owned, *others)
    Tenant.objects.update(max_active_jobs=2)
    next_month(monkeypatch)
    owned.tenant.refresh_from_db()
    barrier, failures = threading.Barrier(6), []

    def run(work):
        barrier.wait()
        try:
            work()
        except QuotaExceeded:
            pass
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    resume = [
        lambda job=job: resume_job(tenant=owned.tenant, user=owned.user, job_id=job.pk) for job in (owned.job, *others)
    ]
    works = [*resume, enforce_quotas, enforce_quotas, lambda: create(owned)]
    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert count_active_jobs(owned.tenant) == 2


def test_the_engine_is_told_why(ours, commands, django_capture_on_commit_callbacks):
    limit(ours, max_sampled_tokens=10)
    with django_capture_on_commit_callbacks(execute=True):
        spend_now(ours.job, spend(2, sampled=10))
    ((_, _, wish),) = [each for each in commands if each[0] == CONTROL_JOB]
    assert wish["reason"] == "The quota of sampled tokens is used up: 10 of 10."


def test_holds_of_jobs_that_have_ended_cost_nothing(ours, django_assert_num_queries):
    """A job that was cancelled while a quota held it keeps its hold, and nobody looks at it again."""
    hold(ours)
    cancel_job(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk)
    spend_now(ours.job, status("cancelled", "Cancelled."))
    limit(ours, max_sampled_tokens=None)
    with django_assert_num_queries(1):
        enforce_quotas()
