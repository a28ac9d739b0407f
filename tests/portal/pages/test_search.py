"""What the command palette finds."""

from __future__ import annotations

from typing import Any

from django.test import Client

from portal.jobs.models import Job
from portal.rewards.services import create_reward_version
from tests.portal.factories import Owned


def found(browser: Client, text: str) -> list[tuple[str, str]]:
    answer = browser.get("/search/", {"q": text})
    assert answer.status_code == 200
    return [(item["kind"], item["title"]) for item in answer.json()["results"]]


def test_by_part_of_a_name_in_any_case(browser: Client, ours: Owned, theirs: Owned) -> None:
    assert found(browser, "RST jo") == [("Job", "first job")]
    assert found(browser, "sums") == [("Dataset", "sums")]
    assert found(browser, "numer") == [("Reward", "numeric")]
    assert found(browser, f"{ours.job.pk.hex}@v") == [("Adapter", ours.adapter.name)]


def test_by_id_of_whatever_kind(browser: Client, ours: Owned, theirs: Owned) -> None:
    assert found(browser, f" {ours.job.pk} ") == [("Job", "first job")]
    assert found(browser, str(ours.adapter.pk)) == [("Adapter", ours.adapter.name)]
    assert found(browser, str(theirs.job.pk)) == []


def test_what_is_too_short_or_nothing(browser: Client, ours: Owned) -> None:
    for text in ("", "s", "  s ", "nothing like it", "a\x00b", "%", "__", "' OR 1=1"):
        assert found(browser, text) == []


def test_results_lead_to_their_pages(browser: Client, ours: Owned) -> None:
    results = browser.get("/search/", {"q": "su"}).json()["results"]
    assert [browser.get(item["url"]).status_code for item in results] == [200]


def test_many_matches_are_few_queries_and_few_results(
    browser: Client, ours: Owned, django_assert_max_num_queries: Any
) -> None:
    def add(*numbers: int) -> None:
        for n in numbers:
            spec = {"grader": {"type": "numeric"}}
            create_reward_version(tenant=ours.tenant, user=ours.user, name=f"common {n}", spec=spec)

    Job.objects.update(name="common job")
    add(0)
    with django_assert_max_num_queries(12) as before:
        found(browser, "common")
    add(*range(1, 30))
    with django_assert_max_num_queries(len(before)):
        results = found(browser, "common")
    assert [kind for kind, _ in results] == ["Job", *["Reward"] * 6]


def test_signed_out(client: Client, db: None) -> None:
    assert client.get("/search/", {"q": "x"}).status_code == 302
    assert client.get("/search/", {"q": "x"}, headers={"HX-Request": "true"}).status_code == 401
