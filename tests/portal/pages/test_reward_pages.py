"""The reward pages without a browser: what forms make of input, the bench, and the comparison of versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.rewards.diff import compare
from portal.rewards.examples import EXAMPLES
from portal.rewards.graders import KINDS
from portal.rewards.models import RewardFunction, RewardTrial
from portal.rewards.services import check_reward_spec, create_reward_version
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user
from tests.portal.factories import Owned

FORM = {"type": "numeric", "timeout_seconds": 5, "parts-TOTAL_FORMS": 0, "parts-INITIAL_FORMS": 0}
PASTE = {"try-source": "paste", "try-prompt": "1+1?", "try-answer": "2", "try-completion": "2"}


def try_it(browser: Client, htmx: bool = True, **changes: Any) -> Any:
    headers = {"HX-Request": "true"} if htmx else {}
    return browser.post(reverse("rewards:try"), {**FORM, **PASTE, **changes}, headers=headers)


def last_trial() -> RewardTrial:
    return RewardTrial.objects.order_by("-created_at")[0]


def test_every_grader_of_the_contract_has_a_form(browser: Client, ours: Owned) -> None:
    page = browser.get(reverse("rewards:new")).content.decode()
    for kind in KINDS.values():
        assert f'name="type" value="{kind.type}"' in page
        for option in set(kind.model.model_fields) - {"type", "parts"}:
            assert f'name="{kind.type}-{option}"' in page


@pytest.mark.parametrize("slug", EXAMPLES)
def test_an_example_is_valid_and_comes_out_of_the_form_as_it_went_in(browser: Client, ours: Owned, slug: str) -> None:
    wanted = check_reward_spec(EXAMPLES[slug].spec)
    answer = browser.get(reverse("rewards:new"), {"example": slug})
    form, parts = answer.context["form"], answer.context["parts"]
    data = {"name": "new", "type": form["type"].value(), "timeout_seconds": form["timeout_seconds"].value()}
    bound = [*form.chosen]
    bound += [field for part in parts for field in (*part, *part.chosen)]
    data |= {field.html_name: field.value() for field in bound if field.value() not in (None, False)}
    data |= {"parts-TOTAL_FORMS": len(parts), "parts-INITIAL_FORMS": 0}
    assert browser.post(reverse("rewards:new"), data).status_code == 302
    assert RewardFunction.objects.get(name="new").versions.get().spec == wanted


def test_an_unknown_example_is_not_there(browser: Client, ours: Owned) -> None:
    assert browser.get(reverse("rewards:new"), {"example": "none"}).status_code == 404


def test_a_reward_written_as_json(browser: Client, ours: Owned) -> None:
    grader = {"type": "numeric", "tolerance": 0.25}
    data = {**FORM, "name": "new", "type": "json", "grader_json": json.dumps(grader)}
    assert browser.post(reverse("rewards:new"), data).status_code == 302
    assert RewardFunction.objects.get(name="new").versions.get().spec == check_reward_spec({"grader": grader})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"type": "numeric",\n oops}', "Line 2, column 2: Expecting property name enclosed in double quotes."),
        ("", "Line 1, column 1: Expecting value."),
        ('{"type": "numeric", "tolerance": -1}', "Tolerance must be at least 0."),
        ("[]", "The grader must be an object"),
        (
            '{"type": "mix", "parts": [{"name": "a", "weight": 1, "grader": {"type": "regex", "pattern": "("}}]}',
            "Not a valid regular expression",
        ),
    ],
)
def test_faults_in_json_are_shown_at_its_field(browser: Client, ours: Owned, text: str, says: str) -> None:
    data = {**FORM, "name": "new", "type": "json", "grader_json": text}
    answer = browser.post(reverse("rewards:new"), data)
    assert answer.status_code == 400
    (message,) = answer.context["form"].errors["grader_json"]
    assert says.lower() in message.lower()


# --- the bench -------------------------------------------------------------------------------------------------------


def test_the_reward_in_the_form_is_tried_without_a_name(browser: Client, ours: Owned) -> None:
    answer = try_it(browser, **{"numeric-tolerance": "0.5"})
    assert answer.status_code == 200
    trial = last_trial()
    assert f'data-trial="{trial.pk}"' in answer.content.decode()
    assert trial.spec["reward"]["grader"] == {**trial.spec["reward"]["grader"], "type": "numeric", "tolerance": 0.5}
    assert trial.spec["cases"][0]["completions"] == ["2"]


def test_without_scripts_the_trial_has_a_page(browser: Client, ours: Owned) -> None:
    answer = try_it(browser, htmx=False)
    assert answer.status_code == 302
    assert answer["Location"] == reverse("rewards:trial", args=[last_trial().pk])
    assert b"Waits for the engine." in browser.get(answer["Location"]).content
    answer = try_it(browser, htmx=False, timeout_seconds="x")
    assert answer.status_code == 400
    assert b"Enter a number." in answer.content


def test_a_saved_version_is_tried_on_rows_of_a_dataset(browser: Client, ours: Owned) -> None:
    fields = {
        "version": ours.reward_version.pk, "try-source": "rows", "try-dataset_version": ours.dataset_version.pk,
        "try-rows": 3, "try-base_model": ours.job.base_model_id, "try-samples": 2,
    }  # fmt: skip
    assert try_it(browser, **fields).status_code == 200
    trial = last_trial()
    assert (trial.reward_version, len(trial.spec["cases"]), trial.total) == (ours.reward_version, 3, 6)


def test_one_row_with_and_without_a_completion(browser: Client, ours: Owned) -> None:
    fields = {
        "try-source": "line", "try-dataset_version": ours.dataset_version.pk, "try-line": 4,
        "try-base_model": ours.job.base_model_id,
    }  # fmt: skip
    try_it(browser, **fields)
    assert (last_trial().spec["cases"][0]["number"], last_trial().total) == (3, 4)
    try_it(browser, **fields, **{"try-line_completion": "4"})
    assert (last_trial().spec["cases"][0]["completions"], last_trial().spec["sampling"]) == (["4"], None)


@pytest.mark.parametrize(
    ("fields", "control", "says"),
    [
        ({"type": "regex", "regex-pattern": "("}, "id_regex-pattern", "Not a valid regular expression"),
        ({"numeric-tolerance": "x"}, "id_numeric-tolerance", "Enter a number."),
        ({"timeout_seconds": 100}, "id_timeout_seconds", "Time limit must be at most 60."),
        ({"try-prompt": ""}, "id_try-prompt", "Is empty."),
        ({"try-metadata": "["}, "id_try-metadata", "Enter a valid JSON."),
        ({"try-source": "line", "try-line": 1}, "id_try-dataset_version", "Choose a dataset"),
        ({"try-source": "nothing"}, "id_try-source", "Select a valid choice"),
    ],
)
def test_refusals_name_the_control(
    browser: Client, ours: Owned, fields: dict[str, Any], control: str, says: str
) -> None:
    before = RewardTrial.objects.count()
    answer = try_it(browser, **fields)
    assert answer.status_code == 200, "htmx shows only what succeeded"
    refusals = {each["control"].removesuffix("_0"): each["message"] for each in answer.context["refusals"]}
    assert says.lower() in refusals[control].lower()
    assert RewardTrial.objects.count() == before


def test_a_foreign_version_cannot_be_tried(browser: Client, ours: Owned, theirs: Owned) -> None:
    assert try_it(browser, version=theirs.reward_version.pk).status_code == 404
    fields = {"try-source": "line", "try-line": 1, "try-dataset_version": theirs.dataset_version.pk}
    assert "id_try-dataset_version" in [each["control"] for each in try_it(browser, **fields).context["refusals"]]


def test_viewers_see_results_and_no_bench(client: Client, ours: Owned) -> None:
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    client.force_login(viewer, backend="django.contrib.auth.backends.ModelBackend")
    assert try_it(client).status_code == 403
    page = client.get(reverse("rewards:trial", args=[ours.reward_trial.pk]))
    assert page.status_code == 200
    assert b"Cancel</button>" not in page.content
    detail = client.get(reverse("rewards:detail", args=[ours.reward_version.reward_function_id]))
    assert b"data-try" not in detail.content


# --- versions --------------------------------------------------------------------------------------------------------


def test_a_comparison_shows_what_changed() -> None:
    earlier = {"grader": {"type": "python", "code": "a = 1\nb = 2\n"}, "timeout_seconds": 5.0}
    later = {"grader": {"type": "python", "code": "a = 1\nb = 3\n"}, "timeout_seconds": 5.0}
    lines = compare(earlier, later)
    changed = [
        (line.kind, line.text.strip(), line.old, line.new) for line in lines if line.kind in {"added", "removed"}
    ]
    assert changed == [("removed", "b = 2", 6, None), ("added", "b = 3", None, 6)]
    assert compare(earlier, earlier) == []


def test_distant_changes_leave_a_gap() -> None:
    earlier = {"a": 1, **{f"x{n}": n for n in range(20)}, "z": 1}
    kinds = [line.kind for line in compare(earlier, {**earlier, "a": 2, "z": 2})]
    assert kinds.count("gap") == 1
    assert (kinds.count("added"), kinds.count("removed")) == (2, 2)


def test_two_versions_are_compared_on_their_page(browser: Client, ours: Owned) -> None:
    for pattern in ("a", "b"):
        spec = {"grader": {"type": "regex", "pattern": pattern}}
        create_reward_version(tenant=ours.tenant, user=ours.user, name="numeric", spec=spec)
    address = reverse("rewards:changes", args=[ours.reward_version.reward_function_id])
    latest = browser.get(address).context
    assert (latest["earlier"].number, latest["later"].number, latest["added"], latest["removed"]) == (2, 3, 1, 1)
    chosen = browser.get(address, {"from": 3, "to": 1}).context
    assert (chosen["earlier"].number, chosen["later"].number) == (3, 1)


def test_which_jobs_used_a_version(browser: Client, ours: Owned) -> None:
    spec = {"grader": {"type": "maths"}}
    create_reward_version(tenant=ours.tenant, user=ours.user, name="numeric", spec=spec)
    address = reverse("rewards:detail", args=[ours.reward_version.reward_function_id])
    latest, first = browser.get(address), browser.get(address, {"version": 1})
    assert list(latest.context["jobs"]) == []
    assert list(first.context["jobs"]) == [ours.job]
    assert [version.job_count for version in latest.context["versions"]] == [0, 1]


def test_the_page_of_a_reward_costs_the_same_queries_whatever_its_versions(browser: Client, ours: Owned) -> None:
    address = reverse("rewards:detail", args=[ours.reward_version.reward_function_id])
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            browser.get(address)
        counts.append(len(queries))
        for number in range(5):
            spec = {"grader": {"type": "numeric", "tolerance": number}}
            create_reward_version(tenant=ours.tenant, user=ours.user, name="numeric", spec=spec)
    assert counts[0] == counts[1]
