"""Metrics, spend and the metrics of adapter versions, for pages and API alike."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.jobs.selectors import summarize_job
from portal.jobs.services import ingest_events
from portal.progress.selectors import best_version, spend, step_points, version_metrics
from portal.webhooks.models import Delivery
from portal.webhooks.services import change_endpoint
from tests.portal.factories import START, Owned, evaluation, make_batch, published, status, step


@pytest.fixture
def grown(ours: Owned) -> Owned:
    best = evaluation(0.75, 2).model_copy(update={"best": True})
    ingest_events(
        batch=make_batch(
            ours.job,
            evaluation(0.25),
            step(2, tokens_sampled=100, tokens_trained=80, accelerator_seconds=1.5),
            published(ours.job, 2),
            best,
            step(3, tokens_sampled=50, tokens_trained=40, accelerator_seconds=0.5, reward_errors=2),
            published(ours.job, 3, final=True),
            evaluation(0.5, 3),
            first=4,
        )
    )
    ours.job.refresh_from_db()
    return ours


def test_spend_adds_up(grown: Owned) -> None:
    found = spend(grown.job)
    assert (found.tokens_sampled, found.tokens_trained, found.accelerator_seconds) == (150, 120, 2.0)
    assert found.reward_errors == 2


def test_versions_have_their_own_metrics_in_a_few_queries(grown: Owned) -> None:
    adapters = list(grown.job.adapter_versions.order_by("version"))
    with CaptureQueriesContext(connection) as captured:
        metrics = version_metrics(adapters)
    assert len(captured) == 3
    assert [(metrics[a.pk].reward_mean, metrics[a.pk].accuracy, metrics[a.pk].best) for a in adapters] == [
        (0.1, None, False),
        (0.2, 0.75, True),
        (0.3, 0.5, False),
    ]
    assert best_version(grown.job) == 2


def test_series_go_on_after_a_step(grown: Owned) -> None:
    assert [point["step"] for point in step_points(grown.job, after=2)] == [3]


def test_the_api_gives_series_spend_and_evaluations(api: Client, grown: Owned) -> None:
    answer = api.get(f"/api/v1/jobs/{grown.job.pk}/metrics/", {"after": 1}).json()
    assert [(s["step"], s["metrics"]["reward_mean"], s["time"]) for s in answer["steps"]] == [
        (2, 0.2, START + 5),
        (3, 0.3, START + 8),
    ]
    assert [(e["adapter_version"], e["accuracy"], e["best"]) for e in answer["evaluations"]] == [
        (None, 0.25, False),
        (2, 0.75, True),
        (3, 0.5, False),
    ]
    assert answer["spend"]["tokens_sampled"] == 150 and answer["best_version"] == 2
    assert answer["time_left"] is not None
    ingest_events(batch=make_batch(grown.job, status("succeeded", "Done."), first=11))
    assert api.get(f"/api/v1/jobs/{grown.job.pk}/metrics/").json()["time_left"] is None
    refused = api.get(f"/api/v1/jobs/{grown.job.pk}/metrics/", {"max_points": 0})
    assert [item["field"] for item in refused.json()["error"]["fields"]] == ["max_points"]


def test_the_api_gives_adapters_their_metrics(api: Client, grown: Owned) -> None:
    with CaptureQueriesContext(connection) as captured:
        adapters = api.get(f"/api/v1/jobs/{grown.job.pk}/adapters/").json()["results"]
    assert [(a["version"], a["held_out_accuracy"], a["best"], a["final"]) for a in adapters] == [
        (3, 0.5, False, True),
        (2, 0.75, True, False),
        (1, None, False, False),
    ]
    assert len([query for query in captured if "evaluationrecord" in query["sql"]]) == 2
    one = api.get(f"/api/v1/adapters/{adapters[1]['id']}/").json()
    assert one == adapters[1]


def test_the_accuracy_of_a_job_is_that_of_its_result(grown: Owned, api: Client) -> None:
    """Version 2 was best; version 3, evaluated later, is the last."""
    assert (grown.job.accuracy, grown.job.last_accuracy) == (0.75, 0.5)
    answer = api.get(f"/api/v1/jobs/{grown.job.pk}/").json()
    assert (answer["base_accuracy"], answer["accuracy"], answer["last_accuracy"]) == (0.25, 0.75, 0.5)
    assert summarize_job(grown.job)["accuracy"] == 0.75


def test_pages_and_messages_tell_the_accuracy_of_the_result(grown: Owned, browser: Client) -> None:
    change_endpoint(tenant=grown.tenant, user=grown.user, endpoint_id=grown.endpoint.pk, events=["job.succeeded"])
    ingest_events(batch=make_batch(grown.job, status("succeeded", "Done."), first=grown.job.last_seq + 1))
    told = json.loads(Delivery.objects.get(event_type="job.succeeded").body)["data"]["job"]
    assert (told["accuracy"], told["last_accuracy"]) == (0.75, 0.5)
    page = browser.get(f"/jobs/{grown.job.pk}/").content.decode()
    summary = page[page.index("Held-out accuracy: base, result") :][:600]
    assert "75" in summary and "+50.0 points" in summary and "last 50" in summary
    for address in ("/jobs/", f"/jobs/compare/?job={grown.job.pk}"):
        shown = browser.get(address).content.decode()
        assert "<strong>75" in shown and "<strong>50" not in shown


def test_a_job_that_wants_its_last_version_shows_its_accuracy(ours: Owned) -> None:
    ours.job.spec["evaluation"]["result"] = "last"
    ours.job.save(update_fields=["spec"])
    best = evaluation(0.75, 1).model_copy(update={"best": True})
    ingest_events(batch=make_batch(ours.job, best, evaluation(0.5, 2), first=4))
    ours.job.refresh_from_db()
    assert (ours.job.accuracy, ours.job.last_accuracy) == (0.5, 0.5)


def test_where_another_version_became_the_result_its_accuracy_counts(ours: Owned) -> None:
    """The best one could not be read any more."""
    best = evaluation(0.75, 1).model_copy(update={"best": True})
    ingest_events(
        batch=make_batch(ours.job, best, step(2), evaluation(0.5, 2), published(ours.job, 2, final=True), first=4)
    )
    ours.job.refresh_from_db()
    assert ours.job.accuracy == 0.5
