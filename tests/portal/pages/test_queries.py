"""Lists cost the same number of queries whatever their length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from engine.events import Notice
from portal.datasets.services import create_dataset_version
from portal.datasets.uploads import complete_upload, create_upload
from portal.environments.services import create_document_set, create_environment_token
from portal.jobs.services import create_job, ingest_events
from portal.rewards.services import create_reward_version
from portal.tenants.services import add_member, create_api_token, create_user
from tests.portal.factories import Owned, jsonl, make_batch, published, rollout, span, status, step


def add_datasets(ours: Owned, number: int) -> None:
    file = jsonl({"prompt": "1?", "answer": 1}, {"prompt": "2?", "answer": 2})
    create_dataset_version(tenant=ours.tenant, user=ours.user, name=f"dataset {number}", file=file)
    upload = create_upload(tenant=ours.tenant, user=ours.user, name=f"upload {number}")
    complete_upload(tenant=ours.tenant, user=ours.user, upload_id=upload.pk)


def add_rewards(ours: Owned, number: int) -> None:
    spec = {"grader": {"type": "numeric"}}
    create_reward_version(tenant=ours.tenant, user=ours.user, name=f"reward {number}", spec=spec)


def add_jobs(ours: Owned, number: int) -> None:
    ours.tenant.max_active_jobs = 100
    ours.tenant.save()
    job = create_job(
        tenant=ours.tenant,
        user=ours.user,
        name=f"job {number}",
        base_model_id=ours.job.base_model_id,
        dataset_version=ours.dataset_version,
        reward_version=ours.reward_version,
        settings={},
    )
    last = [status("succeeded", "Done.")] if number % 2 else [Notice(level="warning", code="x", message="Slow.")]
    ingest_events(batch=make_batch(job, status("running", "Training."), step(1), step(2), published(job, 1), *last))


def add_environment_files(ours: Owned, number: int) -> None:
    file = jsonl({"text": f"Document {number}."})
    create_document_set(tenant=ours.tenant, user=ours.user, name=f"documents {number}", file=file)
    create_environment_token(tenant=ours.tenant, user=ours.user, name=f"token-{number}", value="x")


def add_members(ours: Owned, number: int) -> None:
    user = create_user(username=f"user{number}", email=f"user{number}@example.org", password="correct horse battery")
    add_member(tenant=ours.tenant, user=user)


def add_tokens(ours: Owned, number: int) -> None:
    create_api_token(tenant=ours.tenant, user=ours.user, name=f"token {number}")


def add_events(ours: Owned, number: int) -> None:
    notice = Notice(level="warning", code=f"code {number}", message="Look.", hint="Do.")
    events = [step(number + 2), rollout(number + 2), status("running", f"Still {number}."), span(), notice]
    ingest_events(batch=make_batch(ours.job, *events, first=ours.job.last_seq + 1))
    ours.job.refresh_from_db()


def count_queries(browser: Client, path: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert browser.get(path).status_code == 200
    return len(captured)


@pytest.mark.parametrize(
    ("name", "add"),
    [
        ("home", add_jobs),
        ("home-live", add_jobs),
        ("home", add_datasets),
        ("datasets:list", add_datasets),
        ("rewards:list", add_rewards),
        ("jobs:list", add_jobs),
        ("jobs:new", add_datasets),
        ("jobs:new", add_rewards),
        ("jobs:new-datasets", add_datasets),
        ("jobs:new-rewards", add_rewards),
        ("environments:overview", add_environment_files),
        ("adapters:list", add_jobs),
        ("tenants:members", add_members),
        ("tenants:tokens", add_tokens),
        ("jobs:detail", add_events),
        ("jobs:findings", add_events),
        ("jobs:timeline", add_events),
        ("rollouts:list", add_events),
    ],
)
def test_the_number_of_queries_is_constant(
    browser: Client, ours: Owned, name: str, add: Callable[[Owned, int], Any]
) -> None:
    path = reverse(name, args=[ours.job.pk] if add is add_events else [])
    add(ours, 0)
    add(ours, 1)
    few = count_queries(browser, path)
    for number in range(2, 12):
        add(ours, number)
    assert count_queries(browser, path) == few
    assert few <= 32


def test_an_estimate_costs_the_same_whatever_was_run_before(browser: Client, ours: Owned) -> None:
    body = {
        "name": "x",
        "base_model": ours.job.base_model_id,
        "dataset_version": ours.dataset_version.pk,
        "reward_version": ours.reward_version.pk,
    }

    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert browser.post(reverse("jobs:new-preview"), body).status_code == 200
        return len(captured)

    for number in range(2):
        add_jobs(ours, number)
    few = count()
    for number in range(2, 12):
        add_jobs(ours, number)
    assert count() == few <= 30
