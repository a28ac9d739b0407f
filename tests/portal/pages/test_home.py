"""The home page: the checklist, the sample project, what needs attention."""

from __future__ import annotations

import uuid
from datetime import timedelta

from django.test import Client
from django.urls import reverse
from django.utils import timezone

from engine.events import Notice
from portal.datasets.models import Dataset
from portal.jobs.models import Job
from portal.jobs.services import ingest_events
from portal.rewards.models import RewardFunction
from portal.tenants.models import ApiToken, Role
from portal.tenants.services import add_member, create_api_token, create_tenant, create_user
from tests.portal.factories import Owned, make_batch, published, status


def newcomer(client: Client, role: str = Role.OWNER) -> Client:
    """Signed in to a tenant that has nothing."""
    user = create_user(username="new", email="new@example.org", password="correct horse battery")
    add_member(tenant=create_tenant(name="Fresh", slug="fresh"), user=user, role=role)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def done(client: Client) -> list[bool]:
    return [item["done"] for item in client.get(reverse("home-live")).context["checklist"]]


def attention(client: Client) -> list[tuple[bool, str, str]]:
    found = client.get(reverse("home-live")).context["attention"]
    return [(item.urgent, item.title, item.text) for item in found]


def test_the_sample_project_ticks_the_checklist(client: Client, ours: Owned) -> None:
    client = newcomer(client)
    assert done(client) == [False] * 4
    answer = client.post(reverse("home-sample"))
    job = Dataset.objects.get(tenant__slug="fresh").versions.get().jobs.get()
    assert answer["Location"] == reverse("jobs:detail", args=[job.pk])
    assert (job.dataset_version.rows, job.dataset_version.held_out_rows) == (144, 48)
    assert done(client) == [True, True, True, False]
    events = [status("running", "Training."), published(job, 20, final=True), status("succeeded", "Done.")]
    ingest_events(batch=make_batch(job, *events))
    page = client.get(reverse("home"))
    assert page.context["checklist_done"]
    assert "Get started" not in page.content.decode()
    assert [adapter.version for adapter in page.context["adapters"]] == [20]


def test_the_sample_project_again_is_only_another_job(client: Client, ours: Owned, commands: list[object]) -> None:
    client = newcomer(client)
    for _ in range(2):
        client.post(reverse("home-sample"))
    assert Dataset.objects.filter(tenant__slug="fresh").count() == 1
    assert RewardFunction.objects.filter(tenant__slug="fresh").count() == 1
    version = Dataset.objects.get(tenant__slug="fresh").versions.get()
    assert sorted(version.jobs.values_list("name", flat=True)) == ["Sample: learn to add", "Sample: learn to add (2)"]


def test_the_sample_project_by_api(api: Client, ours: Owned) -> None:
    answer = api.post("/api/v1/sample-project/")
    assert (answer.status_code, answer.json()["name"]) == (201, "Sample: learn to add")
    ours.tenant.max_active_jobs = 1
    ours.tenant.save()
    assert api.post("/api/v1/sample-project/").json()["error"]["code"] == "quota_exceeded"


def test_viewers_are_not_offered_the_sample_project(client: Client, ours: Owned) -> None:
    client = newcomer(client, Role.VIEWER)
    assert reverse("home-sample") not in client.get(reverse("home")).content.decode()
    assert client.post(reverse("home-sample")).status_code == 403


def test_a_failed_job_says_why_for_a_week(browser: Client, ours: Owned) -> None:
    failed = status("failed", "The reward timed out.", "Give it more time.")
    ingest_events(batch=make_batch(ours.job, failed, first=ours.job.last_seq + 1))
    said = (True, "first job failed", "The reward timed out. Give it more time.")
    for days, shown in ((6, True), (8, False)):
        type(ours.job).objects.update(finished_at=timezone.now() - timedelta(days=days))
        assert (said in attention(browser)) == shown


def test_warnings_of_a_job_last_until_they_are_over(browser: Client, ours: Owned) -> None:
    def say(**fields: object) -> None:
        notice = Notice(
            level="warning", code="no_signal", message="Nothing is learnt.", hint="Harder prompts.", **fields
        )  # type: ignore[arg-type]
        ours.job.refresh_from_db()
        ingest_events(batch=make_batch(ours.job, notice, first=ours.job.last_seq + 1))

    expected = (False, "first job", "Nothing is learnt. Harder prompts.")
    say()
    say()
    assert attention(browser).count(expected) == 1
    say(over=True)
    assert expected not in attention(browser)


def test_limits_uploads_and_tokens(browser: Client, ours: Owned, theirs: Owned) -> None:
    assert attention(browser) == []
    ours.tenant.max_active_jobs = 1
    ours.tenant.save()
    type(ours.upload).objects.update(complete=True, report={"total": 3})
    token, _ = create_api_token(tenant=ours.tenant, user=ours.user, name="script")
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() + timedelta(days=2))
    create_api_token(tenant=ours.tenant, user=ours.user, name="lasting")
    assert [(urgent, title) for urgent, title, _ in attention(browser)] == [
        (False, "The limit on active jobs has been reached"),
        (False, "The dataset being sent is not stored yet"),
        (False, "The API token script expires"),
    ]
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(days=2))
    assert attention(browser)[0][:2] == (True, "The API token script expired")


def test_of_many_jobs_under_way_some_are_shown_and_the_rest_counted(browser: Client, ours: Owned) -> None:
    copies = []
    for number in range(2_000):
        job = Job.objects.get(pk=ours.job.pk)
        job.pk, job.name, job.idempotency_key = uuid.uuid4(), f"copy {number}", ""
        copies.append(job)
    Job.objects.bulk_create(copies)
    page = browser.get("/").content.decode()
    assert page.count("<article") == 12
    assert "1989 more under way" in page
