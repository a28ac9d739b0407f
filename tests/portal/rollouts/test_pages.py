"""Rollouts as a tenant finds them: filters, cursors, links that hold, the same prompt early and late."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from engine.events import EventBatch
from portal.jobs.services import ingest_events
from portal.rollouts import selectors
from portal.rollouts.models import RolloutGroup
from portal.rollouts.selectors import Filters, list_groups, shared_prompts
from tests.portal.factories import Owned, make_events, span
from tests.portal.rollouts.test_projection import group


def feed(owned: Owned, *payloads: Any) -> None:
    owned.job.refresh_from_db()
    ingest_events(batch=EventBatch(events=make_events(owned.job, *payloads, first=owned.job.last_seq + 1)))
    owned.job.refresh_from_db()


@pytest.fixture
def many(ours: Owned) -> Owned:
    """Seqs 4 to 9: steps 2, 2, 3, 3, 4, 4; the prompt of seq 4 comes again at seq 9."""
    feed(
        ours,
        group(2, 0.0, 0.1, prompt="first?"),
        group(2, 0.9, 0.1, prompt="second?"),
        group(3, 0.5, 0.5, prompt="third?", error=True),
        group(3, 1.0, 1.0, prompt="Fourth?"),
        group(4, 0.0, 0.0, prompt="fifth?"),
        group(4, 1.0, 0.5, prompt="first?"),
    )
    return ours


def found(browser: Client, owned: Owned, **query: Any) -> list[int]:
    answer = browser.get(reverse("rollouts:list", args=[owned.job.pk]), query)
    assert answer.status_code == 200
    return [item["group"].seq for item in answer.context["items"]]


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ({}, [9, 8, 7, 6, 5, 4]),
        ({"step": 3}, [7, 6]),
        ({"step": 99}, []),
        ({"failed": "on"}, [6]),
        ({"min_reward": "0.9"}, [9, 7, 5]),
        ({"max_reward": "0.1"}, [8, 5, 4]),
        ({"min_reward": "0.4", "max_reward": "0.6"}, [9, 6]),
        ({"q": "FOURTH"}, [7]),
        ({"q": "says 0.9"}, [5]),
        ({"q": "valueerror"}, [6]),
        ({"q": "100%"}, []),
        ({"before": 6}, [5, 4]),
        ({"step": 2, "min_reward": 0.5}, [5]),
    ],
)
def test_filters(browser: Client, many: Owned, query: dict[str, Any], seqs: list[int]) -> None:
    assert found(browser, many, **query) == seqs


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"step": "x"}, "step"),
        ({"step": 0}, "step"),
        ({"step": 2**40}, "step"),
        ({"min_reward": "much"}, "min_reward"),
        ({"min_reward": "nan"}, "min_reward"),
        ({"min_reward": 1, "max_reward": 0}, "max_reward"),
        ({"before": "-1"}, "before"),
        ({"prompt": "../.."}, "prompt"),
        ({"q": "x" * 201}, "q"),
    ],
)
def test_bad_filters_are_refused_at_the_field(browser: Client, many: Owned, query: dict[str, Any], field: str) -> None:
    answer = browser.get(reverse("rollouts:list", args=[many.job.pk]), query)
    assert answer.status_code == 400
    assert field in answer.context["form"].errors


def test_pages_follow_the_cursor_to_the_end(many: Owned) -> None:
    seqs, before = [], None
    for _ in range(3):
        page = list_groups(many.job, Filters(), before=before, limit=2)
        seqs += [each.seq for each in page.groups]
        before = page.before
    assert (seqs, before) == ([9, 8, 7, 6, 5, 4], None)


def test_a_new_group_shifts_no_page(many: Owned) -> None:
    page = list_groups(many.job, Filters(), limit=2)
    feed(many, group(5, 1.0))
    assert [each.seq for each in list_groups(many.job, Filters(), before=page.before, limit=2).groups] == [7, 6]


def test_a_search_says_how_far_it_came(browser: Client, many: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 6 groups a window of 4 sees seqs 9 to 6, the next one the two that are left."""
    monkeypatch.setattr(selectors, "WINDOW", 4)
    url = reverse("rollouts:list", args=[many.job.pk])
    first = browser.get(url, {"q": "second"})
    assert "Nothing found down to step 3" in first.content.decode()
    page = first.context["page"]
    assert (page.groups, page.before, page.searched_to) == ([], 6, 3)
    second = browser.get(url, {"q": "second", "before": page.before}).context["page"]
    assert ([each.seq for each in second.groups], second.before, second.searched_to) == ([5], None, None)


def test_a_search_counts_what_an_index_leaves(many: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives a step does not search all that came after it first."""
    monkeypatch.setattr(selectors, "WINDOW", 2)
    page = list_groups(many.job, Filters(text="second", step=2))
    assert ([each.seq for each in page.groups], page.before, page.searched_to) == ([5], None, None)


def test_every_page_costs_the_same(browser: Client, many: Owned) -> None:
    """Whatever the number of groups, and whatever is looked for."""
    url = reverse("rollouts:list", args=[many.job.pk])

    def queries(query: dict[str, Any]) -> int:
        with CaptureQueriesContext(connection) as captured:
            browser.get(url, query)
        return len(captured)

    asked: list[dict[str, Any]] = [{}, {"q": "says"}, {"failed": "on"}, {"step": 3}, {"min_reward": 0.5}]
    few = [queries(query) for query in asked]
    feed(many, *(group(5, 0.5, 1.0, error=True, prompt=f"{number}?") for number in range(60)))
    assert [queries(query) for query in asked] == few
    assert max(few) <= 11


@pytest.mark.parametrize(
    "filters", [Filters(), Filters(step=3), Filters(errors=True), Filters(prompt="0" * 32)], ids=str
)
def test_lists_are_read_from_an_index_in_order(many: Owned, filters: Filters) -> None:
    """No sorting of a job's groups, no look at all of them."""
    if connection.vendor != "sqlite":
        pytest.skip("the plan is read in SQLite's words")
    feed(many, *(group(5, 0.5, prompt=f"{number}?") for number in range(50)))
    groups = selectors._by_index(many.job, filters).filter(seq__lt=100).order_by("-seq")[:20]
    plan = groups.explain()
    assert "USING INDEX" in plan and "USE TEMP B-TREE" not in plan and "SCAN" not in plan


def test_a_group_side_by_side(browser: Client, many: Owned) -> None:
    page = browser.get(reverse("rollouts:group", args=[many.job.pk, 6])).content.decode()
    for text in ("third?", "Step 3, row 7", "says 0.5", "Reward error", "ValueError", "the base model", "p 0.50"):
        assert text in page
    for seq in (5, 7):
        assert reverse("rollouts:group", args=[many.job.pk, seq]) in page


def test_links_to_episodes_hold(browser: Client, many: Owned) -> None:
    answer = browser.get(reverse("rollouts:episode", args=[many.job.pk, 5, 2]))
    assert answer.context["marked"] == 2
    assert answer.content.decode().count("is-marked") == 1
    for seq, position in ((5, 3), (5, 0), (99, 1), (10**12, 1), (1, 1)):
        assert browser.get(reverse("rollouts:episode", args=[many.job.pk, seq, position])).status_code == 404


def test_the_same_prompt_early_and_late(browser: Client, many: Owned) -> None:
    listed = browser.get(reverse("rollouts:list", args=[many.job.pk])).content.decode()
    assert "drawn 2 times: early against late" in listed
    answer = browser.get(reverse("rollouts:over-time", args=[many.job.pk, 9]))
    assert (answer.context["early"].seq, answer.context["late"].seq) == (4, 9)
    feed(many, group(5, 0.0, 1.0, prompt="first?"))
    url = reverse("rollouts:over-time", args=[many.job.pk, 4])
    assert [browser.get(url).context[side].seq for side in ("early", "late")] == [4, 10]
    chosen = browser.get(url, {"early": "9", "late": "nonsense"})
    assert [chosen.context[side].seq for side in ("early", "late")] == [9, 10]
    once = browser.get(reverse("rollouts:over-time", args=[many.job.pk, 5])).content.decode()
    assert "Drawn once so far" in once


def test_the_last_occurrence_is_listed_however_many_there_are(many: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "OCCURRENCES", 2)
    feed(many, *(group(number, 0.5, prompt="first?") for number in (5, 6, 7)))
    digest = RolloutGroup.objects.get(job=many.job, seq=4).prompt_digest
    assert [each.seq for each in selectors.list_occurrences(many.job, digest)] == [4, 9, 12]


def test_completions_are_text(browser: Client, ours: Owned) -> None:
    feed(ours, span(), group(2, 0.5, prompt="<b>bold</b>"))
    for name in ("group", "over-time"):
        page = browser.get(reverse(f"rollouts:{name}", args=[ours.job.pk, 5])).content.decode()
        assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<b>bold" not in page


def test_prompts_that_jobs_share(ours: Owned, theirs: Owned) -> None:
    """Which jobs a tenant may name is the caller's to check; here two jobs are enough."""
    feed(ours, group(2, 0.0, prompt="a"), group(2, 0.5, prompt="b"), group(3, 1.0, prompt="a"))
    feed(theirs, group(2, 0.25, prompt="a"), group(2, 0.5, prompt="c"))
    (shared,) = shared_prompts([theirs.job, ours.job])
    assert (shared.prompt, [each.reward_mean for each in shared.groups if each]) == ("a", [0.25, 1.0])


# --- the same by the API ---------------------------------------------------------------------------------------------


def test_the_api_gives_the_same(api: Client, many: Owned) -> None:
    url = f"/api/v1/jobs/{many.job.pk}/rollouts/"
    page = api.get(url, {"limit": 4}).json()
    assert ([each["seq"] for each in page["groups"]], page["before"]) == ([9, 8, 7, 6], 6)
    rest = api.get(url, {"limit": 4, "before": page["before"]}).json()
    assert ([each["seq"] for each in rest["groups"]], rest["before"]) == ([5, 4], None)
    assert [each["seq"] for each in api.get(url, {"failed": "true"}).json()["groups"]] == [6]
    assert [each["seq"] for each in api.get(url, {"text": "says 0.9"}).json()["groups"]] == [5]
    one = api.get(f"{url}6/").json()
    assert one == page["groups"][3]
    assert one["episodes"][0] == {
        "position": 1,
        "completion": "says 0.5",
        "reward": 0.5,
        "parts": {"p": 0.5},
        "reason": "ValueError",
        "error": True,
        "advantage": 0.0,
        "tokens": 3,
        "truncated": False,
        "adapter_version": 0,
    }
    again = api.get(url, {"prompt": RolloutGroup.objects.get(job=many.job, seq=9).prompt_digest}).json()
    assert [each["seq"] for each in again["groups"]] == [9, 4]
    assert json.loads(json.dumps(again)) == again


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"step": "x"}, "step"),
        ({"limit": 101}, "limit"),
        ({"before": 0}, "before"),
        ({"min_reward": "nan"}, "min_reward"),
        ({"min_reward": 2, "max_reward": 1}, "max_reward"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_the_api_refuses_bad_filters_at_the_field(api: Client, many: Owned, query: dict[str, Any], field: str) -> None:
    answer = api.get(f"/api/v1/jobs/{many.job.pk}/rollouts/", query)
    assert answer.status_code == 400
    assert [item["field"] for item in answer.json()["error"]["fields"]] == [field]
    assert api.get(f"/api/v1/jobs/{many.job.pk}/rollouts/{10**12}/").status_code == 404


def test_a_search_asks_for_the_episodes_of_one_group_after_another(many: Owned) -> None:
    """Never by EXISTS, which PostgreSQL turns into a look at the episodes of every job."""
    for filters in (Filters(text="says"), Filters(min_reward=0.5), Filters(max_reward=0.5)):
        searched = selectors._searched(selectors._by_index(many.job, filters), filters).order_by("-seq")[:20]
        assert "EXISTS" not in str(searched.query)
        if connection.vendor == "sqlite":
            plan = searched.explain()
            assert "CORRELATED SCALAR SUBQUERY" in plan and "SCAN" not in plan and "TEMP B-TREE" not in plan
