"""Forms: what is wrong is said at the field, what was typed stays, what is right is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.jobs.form_layout import PRESETS
from portal.jobs.forms import JobForm
from portal.jobs.models import Job
from portal.jobs.services import ingest_events
from portal.rewards.models import RewardFunction
from portal.tenants.models import ApiToken, Role
from portal.tenants.services import add_member, create_user
from tests.portal.factories import Owned, make_batch, status, step
from tests.portal.factories import control as applied

# --- rewards ---------------------------------------------------------------------------------------------------------


def part(index: int, **fields: Any) -> dict[str, Any]:
    return {f"parts-{index}-{name}": value for name, value in fields.items()}


def post_reward(browser: Client, *parts: dict[str, Any], **fields: Any) -> Any:
    management = {"parts-TOTAL_FORMS": len(parts), "parts-INITIAL_FORMS": 0}
    data = {"name": "new", "timeout_seconds": 5, **management, **fields}
    for each in parts:
        data |= each
    return browser.post(reverse("rewards:new"), data)


def stored_grader() -> Any:
    return RewardFunction.objects.get(name="new").versions.get().spec["grader"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": "exact_match", "exact_match-strip": "on"}, {"strip": True, "ignore_case": False}),
        ({"type": "numeric", "numeric-tolerance": "0.5"}, {"tolerance": 0.5}),
        ({"type": "maths"}, {}),
        (
            {"type": "regex", "regex-pattern": r"(\d+) ", "regex-ignore_case": "on"},
            {"pattern": r"(\d+) ", "ignore_case": True},
        ),
        ({"type": "json_schema", "json_schema-json_schema": '{"type": "object"}'}, {"json_schema": {"type": "object"}}),
        ({"type": "brevity", "brevity-target": 10, "brevity-limit": 20}, {"target": 10, "limit": 20}),
        ({"type": "reasoning_gym", "reasoning_gym-dataset": "countdown"}, {"dataset": "countdown", "config": {}}),
        ({"type": "environment", "environment-low": "0", "environment-high": 5}, {"low": 0.0, "high": 5.0}),
    ],
)
def test_each_grader_is_stored_with_its_options(
    browser: Client, ours: Owned, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    answer = post_reward(browser, **fields)
    assert answer.status_code == 302, answer.context["form"].errors
    grader = stored_grader()
    assert grader.pop("type") == fields["type"]
    assert expected.items() <= grader.items()


def test_a_mix_is_stored_with_its_parts(browser: Client, ours: Owned) -> None:
    parts = [
        part(0, part_name="right", weight=2, type="numeric"),
        part(1, part_name="short", weight="0.5", type="brevity", **{"brevity-target": 5, "brevity-limit": 50}),
    ]
    assert post_reward(browser, *parts, type="mix").status_code == 302
    stored = [(p["name"], p["weight"], p["grader"]["type"]) for p in stored_grader()["parts"]]
    assert stored == [("right", 2.0, "numeric"), ("short", 0.5, "brevity")]


def test_a_fault_is_shown_at_the_option_and_the_input_stays(browser: Client, ours: Owned) -> None:
    answer = post_reward(browser, type="regex", **{"regex-pattern": "(unclosed"})
    form = answer.context["form"]
    options = form.chosen
    assert list(options.errors) == ["pattern"]
    assert "Not a valid regular expression" in options.errors["pattern"][0]
    assert 'id="id_regex-pattern_error"' in answer.content.decode()
    assert options["pattern"].value() == "(unclosed"
    assert form["name"].value() == "new"


def test_a_missing_option_is_named(browser: Client, ours: Owned) -> None:
    assert post_reward(browser, type="regex").context["form"].chosen.errors == {
        "pattern": ["Regular expression is required."]
    }


def test_a_fault_in_a_mix_is_shown_in_its_part(browser: Client, ours: Owned) -> None:
    parts = [
        part(0, part_name="right", weight=1, type="numeric"),
        part(1, part_name="tag", weight=0, type="regex", **{"regex-pattern": "["}),
    ]
    answer = post_reward(browser, *parts, type="mix")
    assert answer.context["form"].errors == {}
    first, second = answer.context["parts"]
    assert not first.has_errors
    assert (set(second.errors), set(second.chosen.errors)) == ({"weight"}, {"pattern"})
    assert second.chosen["pattern"].value() == "["


def test_a_new_version_starts_from_the_earlier_one(browser: Client, ours: Owned) -> None:
    parts = [part(0, part_name="right", weight=3, type="regex", **{"regex-pattern": "x"})]
    post_reward(browser, *parts, type="mix", timeout_seconds=7)
    version = RewardFunction.objects.get(name="new").versions.get()
    answer = browser.get(reverse("rewards:new"), {"from": version.pk})
    form, (first,) = answer.context["form"], answer.context["parts"]
    assert (form["name"].value(), form["type"].value(), form["timeout_seconds"].value()) == ("new", "mix", 7.0)
    assert (first["part_name"].value(), first["weight"].value(), first.chosen["pattern"].value()) == ("right", 3.0, "x")


# --- jobs ------------------------------------------------------------------------------------------------------------


def job_data(ours: Owned, **changes: Any) -> dict[str, Any]:
    form = JobForm(tenant=ours.tenant)
    data = {name: bound.value() for name in form.fields if (bound := form[name])}
    data["environment__action"] = data["environment__config"] = "{}"
    data |= {
        "name": "second",
        "dataset_version": ours.dataset_version.pk,
        "reward_version": ours.reward_version.pk,
        "base_model": ours.job.base_model_id,
    }
    return {name: value for name, value in (data | changes).items() if value is not None}


def test_a_job_takes_the_settings_of_the_form(browser: Client, ours: Owned) -> None:
    answer = browser.post(
        reverse("jobs:new"),
        job_data(ours, training__steps=7, sampling__max_tokens=31, environment__system_prompt="Be brief.", seed=5),
    )
    job = Job.objects.get(name="second")
    assert answer["Location"] == reverse("jobs:detail", args=[job.pk])
    spec = job.to_spec()
    assert (spec.training.steps, spec.sampling.max_tokens, spec.seed) == (7, 31, 5)
    assert spec.environment.system_prompt == "Be brief."


def test_defaults_of_the_form_are_those_of_the_spec(browser: Client, ours: Owned) -> None:
    browser.post(reverse("jobs:new"), job_data(ours))
    sent = Job.objects.get(name="second").to_spec()
    default = ours.job.to_spec().model_copy(update={"job_id": sent.job_id, "name": "second"})
    training = default.training.model_copy(update={"steps": 20})
    assert sent == default.model_copy(update={"training": training})


def test_limits_of_the_base_model_are_said_at_the_field(browser: Client, ours: Owned) -> None:
    answer = browser.post(reverse("jobs:new"), job_data(ours, lora__rank=64))
    form = answer.context["form"]
    assert answer.status_code == 400
    assert list(form.errors) == ["lora__rank"]
    assert "above the limit of 16" in form.errors["lora__rank"][0]
    assert form["lora__rank"].value() == "64"
    assert 'id="id_lora__rank_error"' in answer.content.decode()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("training__steps", 0, "Steps must be at least 1."),
        ("training__group_size", 1, "Group size must be at least 2."),
        ("training__learning_rate", 0, "Learning rate must be greater than 0."),
        ("sampling__temperature", "warm", "Temperature must be a number."),
        ("training__steps", "", "Steps is needed."),
        ("name", "", "Give the job a name."),
    ],
)
def test_impossible_settings_are_said_at_the_field(
    browser: Client, ours: Owned, name: str, value: Any, message: str
) -> None:
    answer = browser.post(reverse("jobs:new"), job_data(ours, **{name: value}))
    assert answer.context["form"].errors == {name: [message]}


def test_a_full_quota_is_said_above_the_form(browser: Client, ours: Owned) -> None:
    ours.tenant.max_active_jobs = 1
    ours.tenant.save()
    answer = browser.post(reverse("jobs:new"), job_data(ours))
    (message,) = answer.context["form"].non_field_errors()
    assert "1 of 1 are used" in message
    assert "Wait until one finishes" in message


def test_sending_the_form_twice_makes_one_job(browser: Client, ours: Owned) -> None:
    key = browser.get(reverse("jobs:new")).context["idempotency_key"]
    answers = [browser.post(reverse("jobs:new"), job_data(ours, idempotency_key=key)) for _ in range(2)]
    assert answers[0]["Location"] == answers[1]["Location"]
    assert Job.objects.filter(name="second").count() == 1


def test_same_again_starts_from_the_jobs_settings(browser: Client, ours: Owned) -> None:
    form = browser.get(reverse("jobs:new"), {"from": ours.job.pk}).context["form"]
    assert form["training__steps"].value() == 2
    assert form["dataset_version"].value() == ours.dataset_version.pk


def test_every_setting_is_on_the_page_and_every_preset_names_settings(browser: Client, ours: Owned) -> None:
    page = browser.get(reverse("jobs:new")).content.decode()
    for name in JobForm.base_fields.keys() - {"start_from"}:  # there only where a job continues
        assert f'name="{name}"' in page
    assert {name for preset in PRESETS for name in preset["values"]} <= JobForm.base_fields.keys()


def test_limits_may_be_left_empty_or_given(browser: Client, ours: Owned) -> None:
    browser.post(reverse("jobs:new"), job_data(ours, name="free", limits__max_tokens_sampled=""))
    browser.post(
        reverse("jobs:new"),
        job_data(
            ours,
            name="bounded",
            training__max_staleness=2,
            limits__max_tokens_sampled=5000,
            limits__max_tokens_trained=4000,
            limits__max_accelerator_seconds=90.5,
        ),
    )
    free, bounded = (Job.objects.get(name=name).to_spec() for name in ("free", "bounded"))
    assert (free.limits.max_tokens_sampled, free.limits.max_accelerator_seconds) == (None, None)
    assert (bounded.limits.max_tokens_sampled, bounded.limits.max_tokens_trained) == (5000, 4000)
    assert (bounded.limits.max_accelerator_seconds, bounded.training.max_staleness) == (90.5, 2)


# --- continuing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(ours: Owned) -> Any:
    """An adapter whose LoRA settings are not the form's defaults."""
    ours.job.spec["lora"] = {"rank": 4, "alpha": 12.5, "use_rslora": True, "target_modules": []}
    ours.job.save()
    return ours.adapter


def test_the_form_is_prefilled_from_the_adapter(browser: Client, ours: Owned, source: Any) -> None:
    answer = browser.get(reverse("jobs:new"), {"start_from": source.pk})
    form, page = answer.context["form"], answer.content.decode()
    assert (form["lora__rank"].value(), form["training__steps"].value()) == (4, 2)
    assert form["dataset_version"].value() == ours.dataset_version.pk
    assert f'name="start_from" value="{source.pk}"' in page and "first job v1" in page
    without = browser.get(reverse("jobs:new"), {"from": ours.job.pk, "start_from": ""}).context["form"]
    assert without.source is None


def test_a_job_that_continues_has_the_adapters_lora_settings(browser: Client, ours: Owned, source: Any) -> None:
    browser.post(reverse("jobs:new"), job_data(ours, start_from=source.pk, lora__rank=16))
    job = Job.objects.get(name="second")
    assert job.start_from == source
    assert job.to_spec().lora.model_dump() == ours.job.spec["lora"]
    page = browser.get(reverse("jobs:detail", args=[job.pk])).content.decode()
    assert reverse("adapters:detail", args=[source.pk]) in page
    again = browser.get(reverse("jobs:new"), {"from": job.pk}).context["form"]
    assert again.source == source


def test_an_adapter_that_is_gone_is_said_on_the_form(browser: Client, ours: Owned, source: Any) -> None:
    source.removed = True
    source.save()
    answer = browser.get(reverse("jobs:new"), {"start_from": source.pk})
    assert answer.context["form"].source is None
    assert "cannot be used" in answer.content.decode()
    refused = browser.post(reverse("jobs:new"), job_data(ours, start_from=source.pk))
    assert refused.status_code == 400 and "cannot be used" in refused.content.decode()


@pytest.mark.parametrize("page", ["jobs:detail", "adapters:detail"])
def test_pages_offer_to_continue_what_can_be_continued(browser: Client, ours: Owned, source: Any, page: str) -> None:
    path = reverse(page, args=[ours.job.pk if page == "jobs:detail" else source.pk])
    link = f"{reverse('jobs:new')}?start_from={source.pk}"
    assert link in browser.get(path).content.decode()
    source.version = 0
    source.save()
    assert link not in browser.get(path).content.decode()


# --- control ---------------------------------------------------------------------------------------------------------


def control(browser: Client, ours: Owned, action: str, **data: Any) -> str:
    """The job's page after the action."""
    page = browser.post(reverse(f"jobs:{action}", args=[ours.job.pk]), data, follow=True).content.decode()
    ours.job.refresh_from_db()
    return page


@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "steps", "priority"])
def test_control_is_by_post(browser: Client, ours: Owned, action: str) -> None:
    assert browser.get(reverse(f"jobs:{action}", args=[ours.job.pk])).status_code == 405


def test_pausing_and_resuming_are_said_on_the_page(browser: Client, ours: Owned) -> None:
    page = control(browser, ours, "pause")
    assert "Pausing" in page and reverse("jobs:resume", args=[ours.job.pk]) in page
    assert 'data-dialog="pause-dialog"' not in page
    ingest_events(batch=make_batch(ours.job, applied(1), status("paused", "Paused on request."), first=4))
    page = control(browser, ours, "resume")
    assert "Resuming" in page and 'data-dialog="pause-dialog"' in page


def test_steps_and_priority_asked_for_are_said_on_the_page(browser: Client, ours: Owned) -> None:
    assert "40 steps asked for" in control(browser, ours, "steps", steps=40)
    assert "40 steps, priority \u22123 asked for" in control(browser, ours, "priority", priority=-3)
    ingest_events(batch=make_batch(ours.job, applied(2, steps=40, priority=-3), first=4))
    page = browser.get(reverse("jobs:detail", args=[ours.job.pk])).content.decode()
    assert "asked for" not in page and "of 40" in page and "priority \u22123" in page
    assert "ends after step 40, with priority \u22123" in page


@pytest.mark.parametrize(
    ("action", "value", "message"),
    [
        ("steps", "0", "Steps must be at least 1."),
        ("steps", "", "Steps must be a whole number."),
        ("priority", "11", "Priority must be at most 10."),
    ],
)
def test_impossible_numbers_are_refused_in_words(
    browser: Client, ours: Owned, action: str, value: str, message: str
) -> None:
    assert message in control(browser, ours, action, **{action: value})
    assert ours.job.control_revision == 0


def test_fewer_steps_than_done_are_refused_in_words(browser: Client, ours: Owned) -> None:
    ingest_events(batch=make_batch(ours.job, step(2), first=4))
    assert "Steps must be at least 2: so many are done." in control(browser, ours, "steps", steps=1)


def test_what_is_too_late_is_said_on_the_page(browser: Client, ours: Owned) -> None:
    ingest_events(batch=make_batch(ours.job, status("failed", "No."), first=4))
    assert "first job has ended: failed. Start a new job" in control(browser, ours, "pause")


def test_cancelling_leaves_nothing_to_control(browser: Client, ours: Owned) -> None:
    page = control(browser, ours, "cancel")
    assert "Cancelling" in page and 'data-dialog="' not in page.partition('id="summary"')[2].partition("</section>")[0]
    assert ours.job.wants_cancelled


def test_viewers_see_no_control(client: Client, ours: Owned) -> None:
    viewer = create_user(username="viewer", email="viewer@example.org", password="correct horse battery")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    client.force_login(viewer, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(reverse("jobs:detail", args=[ours.job.pk])).content.decode()
    assert "dialog" not in page.partition("<main")[2].partition("</main>")[0] and "start_from" not in page
    assert client.post(reverse("jobs:pause", args=[ours.job.pk])).status_code == 403


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_a_tokens_secret_is_shown_once(browser: Client, ours: Owned) -> None:
    answer = browser.post(reverse("tenants:tokens"), {"name": "ci", "scopes": ["read"], "expires_in_days": "30"})
    assert f'href="{reverse("api:docs")}"' in answer.content.decode()
    secret = answer.context["secret"]
    assert secret.startswith(ApiToken.objects.get(name="ci").prefix)
    assert secret in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert secret not in browser.get(reverse("tenants:tokens")).content.decode()


def test_a_token_needs_a_name_and_a_scope(browser: Client, ours: Owned) -> None:
    errors = browser.post(reverse("tenants:tokens"), {"expires_in_days": ""}).context["form"].errors
    assert errors == {"name": ["Give the token a name."], "scopes": ["Choose what the token may do."]}


def test_a_revoked_token_leaves_the_list(browser: Client, ours: Owned) -> None:
    browser.post(reverse("tenants:tokens"), {"name": "ci", "scopes": ["read"], "expires_in_days": ""})
    token = ApiToken.objects.get(name="ci")
    assert token.expires_at is None
    browser.post(reverse("tenants:token-revoke", args=[token.pk]))
    assert list(browser.get(reverse("tenants:tokens")).context["tokens"]) == []


def test_sign_in_keeps_the_name_and_says_what_is_wrong(client: Client, ours: Owned) -> None:
    page = client.post("/accounts/login/", {"login": "ours", "password": "wrong"}).content.decode()
    assert 'value="ours"' in page and 'role="alert"' in page


def test_the_spec_shown_for_the_api_is_the_stored_one(browser: Client, ours: Owned) -> None:
    answer = browser.get(reverse("rewards:detail", args=[ours.reward_version.reward_function_id]))
    assert json.loads(answer.context["spec"]) == ours.reward_version.spec
