"""Several jobs side by side, and one beside its parent or the defaults."""

from __future__ import annotations

import csv
from typing import Any
from uuid import uuid4

from django.test import Client
from django.urls import reverse

from portal.adapters.models import AdapterVersion
from portal.jobs.compare import differing_settings, overlay_curves
from portal.jobs.models import Job
from portal.jobs.services import create_job, ingest_events
from portal.jobs.settings_diff import compare_settings
from tests.portal.factories import Owned, evaluation, make_batch, published, status, step
from tests.portal.rollouts.test_projection import group


def make_job(owned: Owned, name: str, start_from: AdapterVersion | None = None, **settings: Any) -> Job:
    owned.tenant.max_active_jobs = 20
    owned.tenant.save()
    return create_job(
        tenant=owned.tenant,
        user=owned.user,
        name=name,
        base_model_id=owned.job.base_model_id,
        dataset_version=owned.dataset_version,
        reward_version=owned.reward_version,
        settings=settings,
        start_from=start_from,
    )


def test_only_what_differs_is_listed(ours: Owned) -> None:
    other = make_job(ours, "other", training={"steps": 2, "learning_rate": 5e-4}, sampling={"temperature": 0.5})
    rows = differing_settings([ours.job, other])
    assert [(row.name, row.values) for row in rows] == [
        ("training.learning_rate", ["0.0002", "0.0005"]),
        ("sampling.temperature", ["1", "0.5"]),
    ]
    assert differing_settings([ours.job, make_job(ours, "twin", training={"steps": 2})]) == []


def test_a_job_beside_the_defaults(ours: Owned) -> None:
    words, settings = compare_settings(ours.job)
    assert words == "the defaults"
    assert [(s.name, s.value, s.other) for s in settings if s.differs] == [("training.steps", "2", "20")]


def test_a_job_beside_its_parent(browser: Client, ours: Owned) -> None:
    child = make_job(ours, "child", start_from=ours.adapter, training={"steps": 2, "group_size": 4}, seed=3)
    words, settings = compare_settings(Job.objects.get(pk=child.pk))
    assert words == "first job"
    changed = [(s.name, s.value, s.other) for s in settings if s.differs]
    assert changed == [("seed", "3", "0"), ("training.group_size", "4", "8")]
    page = browser.get(reverse("jobs:detail", args=[child.pk])).content.decode()
    assert "<del>8</del>" in page and "<ins>4</ins>" in page


def test_curves_are_named_and_in_order(ours: Owned) -> None:
    ingest_events(batch=make_batch(ours.job, evaluation(0.125), step(2, kl=0.5), evaluation(0.75, 2), first=4))
    ours.job.refresh_from_db()
    (curve,) = overlay_curves([ours.job])
    assert curve["name"] == "first job"
    assert [(p["step"], p.get("reward_mean"), p.get("held_out"), p.get("kl")) for p in curve["points"]] == [
        (0, None, 0.125, None),
        (1, 0.1, None, None),
        (2, 0.2, 0.75, 0.5),
    ]
    assert [p["time"] for p in curve["points"]] == [3, 1, 4]  # since it first ran


def test_the_page_compares_what_the_address_names(browser: Client, ours: Owned) -> None:
    other = make_job(ours, "other <job>", lora={"rank": 8})
    for job, first in ((ours.job, 4), (other, 1)):
        ingest_events(batch=make_batch(job, group(1, 0.5, prompt="the same?"), first=first))
    url = reverse("jobs:compare")
    answer = browser.get(url, {"job": [ours.job.pk, other.pk, ours.job.pk]})
    assert [job.pk for job, _ in answer.context["jobs"]] == [ours.job.pk, other.pk]
    page = answer.content.decode()
    for text in ("the same?", "lora · rank", "other &lt;job&gt;"):
        assert text in page
    assert "other <job>" not in page
    alone = browser.get(url, {"job": ours.job.pk}).content.decode()
    assert "Add another job" in alone and "curves-title" not in alone
    assert browser.get(url).status_code == 200


def test_at_most_six(browser: Client, ours: Owned) -> None:
    jobs = [make_job(ours, f"job {number}") for number in range(7)]
    answer = browser.get(reverse("jobs:compare"), {"job": [job.pk for job in jobs]})
    assert len(answer.context["jobs"]) == 6 and not answer.context["offered"]


def test_foreign_jobs_are_not_found(browser: Client, ours: Owned, theirs: Owned) -> None:
    url = reverse("jobs:compare")
    for stranger in (theirs.job.pk, uuid4(), "x"):
        assert browser.get(url, {"job": [ours.job.pk, stranger]}).status_code == 404
    assert "first job" in browser.get(url).content.decode()
    assert str(theirs.job.pk) not in browser.get(url).content.decode()


def test_all_metrics_as_csv(browser: Client, ours: Owned) -> None:
    ingest_events(batch=make_batch(ours.job, evaluation(0.25), step(2, kl=0.5), evaluation(0.75, 2), first=4))
    answer = browser.get(reverse("jobs:metrics-csv", args=[ours.job.pk]))
    assert answer["Content-Disposition"] == 'attachment; filename="first-job-metrics.csv"'
    rows = list(csv.DictReader(answer.content.decode().splitlines()))
    assert [(r["step"], r["reward_mean"], r["kl"], r["held_out_accuracy"]) for r in rows] == [
        ("0", "", "", "0.25"),
        ("1", "0.1", "", ""),
        ("2", "0.2", "0.5", "0.75"),
    ]


def test_the_best_version_is_marked_and_always_shown(browser: Client, ours: Owned) -> None:
    best = evaluation(0.9, 1).model_copy(update={"best": True})
    later = evaluation(0.5, 8)
    versions = [published(ours.job, number, final=number == 8) for number in range(2, 9)]
    ingest_events(batch=make_batch(ours.job, best, *versions, later, status("succeeded", "Done."), first=4))
    answer = browser.get(reverse("jobs:adapters", args=[ours.job.pk]))
    shown = [(adapter.version, metrics.best, metrics.accuracy) for adapter, metrics in answer.context["adapters"]]
    assert shown == [
        (8, False, 0.5),
        (7, False, None),
        (6, False, None),
        (5, False, None),
        (4, False, None),
        (1, True, 0.9),
    ]
    listed = browser.get(reverse("adapters:list")).content.decode()
    assert listed.count("Best</span>") == 1 and listed.count("Result</span>") == 1
