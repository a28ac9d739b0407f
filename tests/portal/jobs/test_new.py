"""The new-job form: every setting of the spec, what is kept and dropped, clones, choices, the same by API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from engine.spec import JobSpec
from portal.datasets.services import create_dataset_version
from portal.jobs.choices import SHOWN, find_dataset_choices, find_reward_choices
from portal.jobs.form_fields import ENVIRONMENTS, SECTIONS
from portal.jobs.form_layout import ALGORITHMS, FOLDED, PRESETS, TEXTS, WHEN
from portal.jobs.forms import JobForm
from portal.jobs.models import Job
from portal.jobs.services import create_job
from portal.rewards.services import create_reward_version
from portal.tenants.models import Scope
from portal.tenants.services import create_api_token
from tests.portal.factories import Owned, build_owned, jsonl

NEW, PREVIEW = "jobs:new", "jobs:new-preview"


def data_of(owned: Owned, initial: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """What a browser would send: the form as shown, and changes to it."""
    form = JobForm(tenant=owned.tenant, initial=initial or {})
    data = {name: form[name].value() for name in form.fields}
    for name in ("environment__config", "environment__action"):
        data[name] = data[name] if isinstance(data[name], str) else json.dumps(data[name] or {})
    data = {
        **data,
        "name": "new",
        "dataset_version": owned.dataset_version.pk,
        "reward_version": owned.reward_version.pk,
        "base_model": owned.job.base_model_id,
        **changes,
    }
    return {name: value for name, value in data.items() if value is not None and value is not False}


def start(browser: Client, owned: Owned, **changes: Any) -> JobSpec:
    answer = browser.post(reverse(NEW), data_of(owned, **changes))
    assert answer.status_code == 302, answer.context["form"].errors
    return Job.objects.get(name="new").to_spec()


def preview(browser: Client, owned: Owned, **changes: Any) -> Any:
    answer = browser.post(reverse(PREVIEW), data_of(owned, **changes))
    assert answer.status_code == 200
    return answer.context


# --- the spec and the form -------------------------------------------------------------------------------------------


def test_the_form_has_every_setting_of_the_spec() -> None:
    settings = {f"{section}__{name}" for section, model in SECTIONS.items() for name in model.model_fields}
    settings |= {f"environment__{name}" for model in ENVIRONMENTS.values() for name in model.model_fields}
    assert settings == {name for name in JobForm.base_fields if "__" in name}
    assert set(WHEN) <= settings and set(FOLDED) <= {*settings, "seed"}
    assert settings - set(TEXTS) == {"environment__type", "training__algorithm"}


def test_every_algorithm_is_offered_and_every_preset_makes_a_job(browser: Client, ours: Owned) -> None:
    for algorithm in ALGORITHMS:
        assert preview(browser, ours, training__algorithm=algorithm)["field_errors"] == {}
    for preset in PRESETS:
        found = preview(browser, ours, **preset["values"])
        assert found["field_errors"] == {}
        assert found["estimate"].spec.training.steps == preset["values"]["training__steps"]


def test_settings_that_do_not_count_are_left_out(browser: Client, ours: Owned) -> None:
    spec = start(
        browser,
        ours,
        training__algorithm="gspo",
        training__clip_low=0.9,
        training__sequence_clip_low=0.001,
        training__importance_floor=0.5,
        training__kl_estimator="k1",
        environment__max_turns="many",
        environment__url="not an address",
    )
    assert (spec.training.clip_low, spec.training.sequence_clip_low) == (0.2, 0.001)
    assert (spec.training.importance_floor, spec.training.kl_estimator) == (0.0, "k3")
    assert spec.environment.type == "single_turn"


def test_every_kind_of_setting_arrives(browser: Client, ours: Owned) -> None:
    spec = start(
        browser,
        ours,
        training__kl_coefficient=0.1,
        training__kl_estimator="k2",
        training__schedule="cosine",
        training__overlong_buffer=8,
        lora__use_rslora="on",
        lora__target_modules=["q_proj", "v_proj"],
        evaluation__every_steps=5,
        evaluation__patience=2,
        limits__max_accelerator_seconds=9.5,
    )
    assert (spec.training.kl_estimator, spec.training.schedule, spec.training.overlong_buffer) == ("k2", "cosine", 8)
    assert (spec.lora.use_rslora, spec.lora.target_modules) == (True, ["q_proj", "v_proj"])
    assert (spec.evaluation.patience, spec.limits.max_accelerator_seconds) == (2, 9.5)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"type": "tools", "tools": ["calculator", "search"], "max_turns": 3, "search_results": 2},
            {"type": "tools", "tools": ["calculator", "search"], "max_turns": 3, "search_results": 2},
        ),
        (
            {"type": "remote", "url": "https://example.org/game", "token_name": "server", "max_episode_tokens": 99},
            {"type": "remote", "url": "https://example.org/game", "token_name": "server", "max_episode_tokens": 99},
        ),
        (
            {"type": "openenv", "url": "https://example.org", "action": '{"kind": 1}', "observation_field": "text"},
            {"type": "openenv", "url": "https://example.org", "action": {"kind": 1}, "observation_field": "text"},
        ),
    ],
)
def test_environments_arrive(
    browser: Client, ours: Owned, environment: dict[str, Any], expected: dict[str, Any]
) -> None:
    fields = {f"environment__{name}": value for name, value in environment.items()}
    if "search" in environment.get("tools", []):
        fields["environment__documents_sha256"] = ours.document_set.sha256
        expected = {**expected, "documents_sha256": ours.document_set.sha256}
    spec = start(browser, ours, **fields)
    assert spec.environment.model_dump() | expected == spec.environment.model_dump()


def test_generated_tasks_need_a_name_and_no_dataset(browser: Client, ours: Owned) -> None:
    grader = {"grader": {"type": "environment"}}
    own = create_reward_version(tenant=ours.tenant, user=ours.user, name="own", spec=grader)
    fields = {"rows": "generated", "dataset_version": "", "reward_version": own.pk}
    errors = preview(browser, ours, **fields)["field_errors"]
    assert list(errors) == ["environment__dataset"]
    spec = start(browser, ours, environment__dataset="countdown", environment__config='{"min_numbers": 3}', **fields)
    assert spec.dataset is None
    assert (spec.environment.dataset, spec.environment.config) == ("countdown", {"min_numbers": 3})
    job = Job.objects.get(name="new")
    for path in (reverse("jobs:detail", args=[job.pk]), reverse("jobs:list"), reverse("home")):
        assert "reasoning-gym countdown" in browser.get(path).content.decode()
    again = browser.get(reverse(NEW), {"from": job.pk}).context["form"]
    assert (again["rows"].value(), again["environment__dataset"].value()) == ("generated", "countdown")
    assert json.loads(again["environment__config"].value()) == {"min_numbers": 3}


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"evaluation__patience": 3}, "evaluation__patience", "Patience needs evaluations during training"),
        ({"training__minibatches": 9}, "training__minibatches", "Minibatches 9 is more than the 8 groups"),
        ({"training__steps": "1.5"}, "training__steps", "must be a number"),
        ({"environment__type": "remote", "environment__url": ""}, "environment__url", "such as https://"),
        ({"dataset_version": ""}, "dataset_version", "Choose a dataset."),
        ({"environment__type": "tools", "environment__tools": []}, "environment__tools", "at least 1 item"),
        ({"environment__type": "remote", "environment__url": "ftp://x"}, "environment__url", "such as https://"),
        (
            {"environment__type": "openenv", "environment__url": "https://x.org", "environment__action": "{"},
            "environment__action",
            "must be JSON",
        ),
        (
            {"environment__type": "remote", "environment__url": "https://x.org", "environment__token_name": "gone"},
            "environment__token_name",
            "no token",
        ),
        ({"training__overlong_buffer": 65}, "training__overlong_buffer", "longer than a completion may be"),
    ],
)
def test_faults_are_said_at_the_field_before_and_after_sending(
    browser: Client, ours: Owned, changes: dict[str, Any], field: str, says: str
) -> None:
    errors = preview(browser, ours, **changes)["field_errors"]
    assert list(errors) == [field] and says in errors[field][0]
    answer = browser.post(reverse(NEW), data_of(ours, **changes))
    assert answer.status_code == 400
    assert list(answer.context["form"].errors) == [field]
    assert f'id="id_{field}_error"' in answer.content.decode()
    assert not Job.objects.filter(name="new").exists()


def test_a_blocking_check_is_said_at_its_field(browser: Client, ours: Owned) -> None:
    version = create_dataset_version(
        tenant=ours.tenant, user=ours.user, name="words", file=jsonl({"prompt": "a", "answer": "b"})
    )
    answer = browser.post(reverse(NEW), data_of(ours, dataset_version=version.pk))
    assert list(answer.context["form"].errors) == ["reward_version"]
    assert "has a number" in answer.content.decode()


# --- clones ----------------------------------------------------------------------------------------------------------


def test_a_clone_is_the_same_job_under_the_next_name(browser: Client, ours: Owned) -> None:
    settings = {
        "environment": {"type": "tools", "tools": ["calculator"], "max_turns": 5, "system_prompt": "Think."},
        "training": {"algorithm": "dapo", "steps": 3, "clip_high": 0.3, "max_sampling_rounds": 2},
        "lora": {"rank": 4, "alpha": 8, "use_rslora": True, "target_modules": ["q_proj"]},
        "evaluation": {"every_steps": 1, "patience": 2, "min_delta": 0.01},
        "limits": {"max_tokens_sampled": 10_000},
        "seed": 9,
    }
    source = create_job(
        tenant=ours.tenant,
        user=ours.user,
        name="source",
        base_model_id=ours.job.base_model_id,
        dataset_version=ours.dataset_version,
        reward_version=ours.reward_version,
        settings=settings,
    )
    form = browser.get(reverse(NEW), {"from": source.pk}).context["form"]
    assert form["name"].value() == "source (2)"
    browser.post(reverse(NEW), data_of(ours, initial=form.initial, name="source (2)"))
    clone = Job.objects.get(name="source (2)")
    same = clone.to_spec().model_copy(update={"job_id": source.pk.hex, "name": "source"})
    assert same == source.to_spec()
    for job in (source, clone):
        assert browser.get(reverse(NEW), {"from": job.pk}).context["form"]["name"].value() == "source (3)"


# --- choices ---------------------------------------------------------------------------------------------------------


def test_choices_are_the_newest_versions_found_by_name(ours: Owned, theirs: Owned) -> None:
    def add(name: str):
        file = jsonl({"prompt": "1?", "answer": 1})
        return create_dataset_version(tenant=ours.tenant, user=ours.user, name=name, file=file)

    first, second = add("Sums of two"), add("Sums of two")
    others = [add(f"other {number}") for number in range(SHOWN)]
    assert find_dataset_choices(ours.tenant) == list(reversed(others))
    assert find_dataset_choices(ours.tenant, "sums") == [second, ours.dataset_version]
    assert find_dataset_choices(ours.tenant, "sums of two v1") == [first]
    assert find_dataset_choices(ours.tenant, "sums", str(first.pk)) == [first, second, ours.dataset_version]
    assert find_dataset_choices(ours.tenant, "", str(theirs.dataset_version.pk)) == list(reversed(others))
    assert find_dataset_choices(ours.tenant, "nothing", "no id") == []
    assert find_reward_choices(ours.tenant, "NUM") == [ours.reward_version]


def test_the_chosen_version_stays_while_one_searches(browser: Client, ours: Owned) -> None:
    chosen = str(ours.dataset_version.pk)
    answer = browser.get(reverse("jobs:new-datasets"), {"dataset_query": "nothing", "dataset_version": chosen})
    assert f'value="{chosen}" checked' in answer.content.decode()
    page = browser.get(reverse("jobs:new-rewards"), {"reward_query": "nothing"}).content.decode()
    assert "No reward of this name" in page


# --- the same by API -------------------------------------------------------------------------------------------------


def test_the_preview_says_what_is_missing_and_shows_the_rest(browser: Client, ours: Owned) -> None:
    answer = browser.post(reverse(PREVIEW), {"training__steps": 5})
    assert answer.status_code == 200
    assert {"base_model", "dataset_version", "reward_version"} <= answer.context["field_errors"].keys()
    assert "DATASET_VERSION" in answer.context["curl"]
    assert answer.context["estimate"] is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("language", ["curl", "python"])
def test_the_snippets_run_as_they_are(client: Client, live_server: Any, language: str) -> None:
    from portal.base_models.services import ensure_bundled_base_model

    ensure_bundled_base_model()
    ours = build_owned("ours")
    client.force_login(ours.user, backend="django.contrib.auth.backends.ModelBackend")
    _, secret = create_api_token(tenant=ours.tenant, user=ours.user, name="all", scopes=list(Scope))
    changes = {
        "name": 'it\'s "quoted" $HOME `x` \\ END',
        "environment__type": "tools",
        "environment__tools": ["calculator"],
        "environment__system_prompt": "Line one.\nEND\nIt's 'here'.",
        "lora__use_rslora": "on",
        "training__steps": 3,
    }
    found = client.post(reverse(PREVIEW), data_of(ours, **changes), headers={"host": live_server.url[7:]}).context
    program = ["bash", "-c", found["curl"]] if language == "curl" else [sys.executable, "-c", found["python"]]
    done = subprocess.run(
        program, env={**os.environ, "MARLAAS_TOKEN": secret}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    by_api = Job.objects.get(name=changes["name"])
    client.post(reverse(NEW), data_of(ours, **changes))
    by_form = Job.objects.exclude(pk=by_api.pk).get(name=changes["name"])
    assert by_api.to_spec().model_copy(update={"job_id": by_form.pk.hex}) == by_form.to_spec()
