"""What a job would take: figures worked out by hand, and nothing where nothing is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.http import Http404
from tokenizers import Tokenizer, models, pre_tokenizers

from portal.base_models.models import BaseModel
from portal.datasets.services import create_dataset_version
from portal.errors import InvalidInput
from portal.jobs.estimates import Estimate, estimate_job
from portal.jobs.lengths import measure_prompts
from portal.jobs.models import Job
from portal.jobs.rates import measure_rates
from portal.jobs.services import ingest_events
from portal.rewards.services import create_reward_version
from tests.portal.factories import Owned, jsonl, make_batch, step

TRAINING = {"steps": 10, "prompts_per_step": 4, "group_size": 5}
MEASURED = {
    "completion_tokens_mean": 8.0,
    "tokens_sampled": 400.0,
    "tokens_trained": 300.0,
    "rollout_seconds": 4.0,
    "train_seconds": 6.0,
    "publish_seconds": 0.5,
    "accelerator_seconds": 7.0,
}


def estimate(owned: Owned, **changes: Any) -> Estimate:
    arguments = {
        "tenant": owned.tenant,
        "base_model_id": owned.job.base_model_id,
        "dataset_version": owned.dataset_version,
        "reward_version": owned.reward_version,
        "settings": {"training": TRAINING, "sampling": {"max_tokens": 32}},
    }
    return estimate_job(**{**arguments, **changes})


def dataset(owned: Owned, *rows: dict[str, Any], name: str = "other", held_out: float = 0.0):
    return create_dataset_version(
        tenant=owned.tenant, user=owned.user, name=name, file=jsonl(*rows), held_out_fraction=held_out
    )


def reward(owned: Owned, grader: dict[str, Any]):
    return create_reward_version(tenant=owned.tenant, user=owned.user, name="other", spec={"grader": grader})


def blocking(found: Estimate) -> list[str]:
    return [check.field for check in found.checks if check.blocks]


def prepare_tokenizer(base_model_id: str, template: str) -> None:
    """A base model as the engine leaves it: one token a word, a template around each message."""
    folder = Path(settings.MARLAAS_VAR) / "models" / f"{base_model_id}-0123"
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template)


# --- tokens and time -------------------------------------------------------------------------------------------------


def test_where_nothing_was_measured_only_tokens_are_given(ours: Owned) -> None:
    found = estimate(ours)
    assert (found.episodes, found.passes) == (200, 40 / 9)
    assert (found.tokens.sampled_at_most, found.tokens.trained_at_most) == (6400, 6400)
    assert found.tokens.completion_mean is None
    assert (found.seconds, found.accelerator_seconds) == (None, None)
    assert any("has measured it yet" in line for line in found.basis)
    assert any("4 characters a token" in line for line in found.basis)
    assert found.can_start


def test_measured_rates_give_time_and_earlier_lengths_give_tokens(ours: Owned) -> None:
    ingest_events(batch=make_batch(ours.job, step(2, **MEASURED), first=4))
    found = estimate(ours)
    # 200 episodes of 8 tokens at 100 a second, trained at 50 a second, and half a second to publish each of 10 steps
    assert (found.tokens.sampled, found.tokens.trained) == (1600, 1600)
    assert found.seconds == pytest.approx(16 + 32 + 5)
    assert found.accelerator_seconds == pytest.approx(3200 * 0.01)
    ahead = estimate(ours, settings={"training": {**TRAINING, "max_staleness": 1}, "sampling": {"max_tokens": 32}})
    assert ahead.seconds == pytest.approx(32 + 5)
    limited = estimate(ours, settings={"training": TRAINING, "limits": {"max_wall_seconds": 20}})
    assert limited.seconds == 20
    other = estimate(ours, dataset_version=dataset(ours, {"prompt": "a", "answer": 1}))
    assert other.tokens.completion_mean is None and other.tokens.sampled == 200 * 32


def test_rates_are_the_pools_and_lengths_the_tenants(ours: Owned, theirs: Owned) -> None:
    ingest_events(batch=make_batch(theirs.job, step(2, **MEASURED), first=4))
    found = estimate(ours)
    assert found.seconds == pytest.approx(64 + 128 + 5)  # at most 6400 tokens
    assert found.tokens.completion_mean is None
    rates = measure_rates(ours.job.base_model)
    assert (rates.jobs, rates.running, rates.sampled_per_second) == (2, 2, 100)


def test_an_interrupted_or_odd_measurement_is_left_out(ours: Owned) -> None:
    ingest_events(batch=make_batch(ours.job, step(2, **{**MEASURED, "rollout_seconds": 0.0}), first=4))
    rates = measure_rates(ours.job.base_model)
    assert (rates.sampled_per_second, rates.known) == (None, False)
    assert estimate(ours).seconds is None


@pytest.mark.parametrize(
    ("environment", "at_most"),
    [
        ({"type": "tools", "max_turns": 3}, 3 * 32),
        ({"type": "tools", "max_turns": 3, "max_episode_tokens": 50}, 50),
        ({"type": "tools", "max_turns": 250}, 1024),
    ],
)
def test_turns_count(ours: Owned, environment: dict[str, Any], at_most: int) -> None:
    found = estimate(ours, settings={"training": TRAINING, "sampling": {"max_tokens": 32}, "environment": environment})
    assert found.tokens.sampled_at_most == 200 * at_most


def test_generated_tasks_need_no_dataset(ours: Owned) -> None:
    environment = {"type": "reasoning_gym", "dataset": "countdown", "train_rows": 20}
    settings = {"training": TRAINING, "environment": environment}
    found = estimate(
        ours, dataset_version=None, settings=settings, reward_version=reward(ours, {"type": "environment"})
    )
    assert (found.tokens.prompt, found.passes, found.can_start) == (None, 2.0, True)
    misspelt = {**settings, "environment": {**environment, "dataset": "countdwn"}}
    assert blocking(estimate(ours, dataset_version=None, settings=misspelt)) == ["environment.dataset"]


def test_an_estimate_starts_nothing_and_refuses_what_creating_refuses(ours: Owned, theirs: Owned) -> None:
    estimate(ours)
    assert Job.objects.filter(tenant=ours.tenant).count() == 1
    with pytest.raises(InvalidInput) as caught:
        estimate(ours, settings={"lora": {"rank": 99}})
    assert caught.value.fields[0].field == "lora.rank"
    with pytest.raises(InvalidInput) as caught:
        estimate(ours, dataset_version=None)
    assert caught.value.fields[0].field == "dataset_version"
    with pytest.raises(Http404):
        estimate(ours, dataset_version=theirs.dataset_version)


# --- lengths ---------------------------------------------------------------------------------------------------------


def test_the_base_models_own_tokenizer_and_template_count(ours: Owned) -> None:
    version = dataset(ours, *({"prompt": " ".join(["word"] * count)} for count in (2, 6, 4)))
    model = BaseModel.objects.get()
    rough = measure_prompts(version, model)
    assert rough and not rough.exact
    prepare_tokenizer(model.pk, "{% for m in messages %}<{{ m.role }}> {{ m.content }} </s> {% endfor %}<assistant>")
    found = measure_prompts(version, model)
    assert found and (found.mean, found.longest, found.longest_line, found.exact) == (7.0, 9, 2, True)
    with_system = measure_prompts(version, model, "Be very brief.")
    assert with_system and with_system.mean == 7 + 5


def test_a_template_that_refuses_the_chat_costs_no_estimate(ours: Owned) -> None:
    prepare_tokenizer(ours.job.base_model_id, "{{ raise_exception('no') }}")
    found = measure_prompts(ours.dataset_version, ours.job.base_model)
    assert found and found.longest >= 1


def test_prompts_longer_than_the_context_block_where_they_are_counted(ours: Owned) -> None:
    version = dataset(ours, {"prompt": "a", "answer": 1}, {"prompt": "word " * 1000, "answer": 2})
    rough = estimate(ours, dataset_version=version)
    assert "sampling.max_tokens" in [check.field for check in rough.checks]
    assert rough.can_start
    prepare_tokenizer(ours.job.base_model_id, "{{ messages[0].content }}")
    found = estimate(ours, dataset_version=version)
    assert blocking(found) == ["sampling.max_tokens"]
    assert "line 2) has 1000 tokens" in found.checks[0].message
    assert "leaves 992" in found.checks[0].message
    assert estimate(ours, dataset_version=version, settings={"sampling": {"max_tokens": 24}}).can_start


# --- checks ----------------------------------------------------------------------------------------------------------

TEXT = [{"prompt": f"{n}?", "answer": "none"} for n in range(4)]
SILENT = [{"prompt": f"{n}?"} for n in range(4)]
PART = {"name": "a", "weight": 1, "grader": {"type": "numeric"}}


@pytest.mark.parametrize(
    ("rows", "grader", "blocks"),
    [
        (TEXT, {"type": "numeric"}, True),
        (TEXT, {"type": "exact_match"}, False),
        (SILENT, {"type": "exact_match"}, True),
        (SILENT, {"type": "maths"}, True),
        (SILENT, {"type": "regex", "pattern": "a", "group_equals_answer": True}, True),
        (SILENT, {"type": "regex", "pattern": "a"}, False),
        (SILENT, {"type": "json_schema", "json_schema": {}}, False),
        ([*TEXT, {"prompt": "5?", "answer": 5}], {"type": "numeric"}, False),
        (TEXT, {"type": "mix", "parts": [PART]}, True),
        (TEXT, {"type": "mix", "parts": [PART, {**PART, "name": "b", "grader": {"type": "exact_match"}}]}, False),
    ],
)
def test_a_reward_that_cannot_work_with_the_answers_blocks(
    ours: Owned, rows: list[dict[str, Any]], grader: dict[str, Any], blocks: bool
) -> None:
    found = estimate(ours, dataset_version=dataset(ours, *rows), reward_version=reward(ours, grader))
    assert blocking(found) == (["reward_version"] if blocks else [])


def test_some_rows_without_a_number_are_a_warning(ours: Owned) -> None:
    version = dataset(ours, *TEXT, {"prompt": "5?", "answer": 5})
    (check,) = [check for check in estimate(ours, dataset_version=version).checks if check.field == "reward_version"]
    assert not check.blocks and check.message.startswith("4 of the first 5 rows")


@pytest.mark.parametrize(("part", "blocks"), [("reward", True), ("tool_calls", False), ("turns", False)])
def test_a_part_the_environment_does_not_give_blocks(ours: Owned, part: str, blocks: bool) -> None:
    found = estimate(
        ours,
        settings={"environment": {"type": "tools"}},
        reward_version=reward(ours, {"type": "environment", "part": part}),
    )
    assert blocking(found) == (["reward_version"] if blocks else [])


def test_search_needs_documents(ours: Owned) -> None:
    settings = {"environment": {"type": "tools", "tools": ["search"]}}
    assert blocking(estimate(ours, settings=settings)) == ["environment.documents_sha256"]
    own = dataset(ours, {"prompt": "1?", "answer": 1, "documents": ["a"]}, {"prompt": "2?", "answer": 2})
    found = estimate(ours, settings=settings, dataset_version=own)
    assert found.can_start and "1 of the first 2 rows" in json.dumps([check.message for check in found.checks])
    settings["environment"]["documents_sha256"] = ours.document_set.sha256
    assert estimate(ours, settings=settings).can_start
    settings["environment"]["documents_sha256"] = "0" * 64
    assert blocking(estimate(ours, settings=settings)) == ["environment.documents_sha256"]


def test_remote_environments_need_their_token(ours: Owned) -> None:
    remote = {"type": "remote", "url": "https://example.org", "token_name": "server"}
    assert estimate(ours, settings={"environment": remote}).can_start
    missing = {**remote, "token_name": "missing"}
    assert blocking(estimate(ours, settings={"environment": missing})) == ["environment.token_name"]
    plain = estimate(ours, settings={"environment": {**remote, "url": "http://example.org"}})
    assert "environment.url" in [check.field for check in plain.checks] and plain.can_start


def test_a_full_quota_blocks_and_says_what_to_do(ours: Owned) -> None:
    ours.tenant.max_active_jobs = 1
    ours.tenant.save()
    found = estimate(ours)
    assert not found.can_start
    assert "Wait until one finishes" in found.checks[0].hint
    assert (found.quotas[0].left, found.quotas[0].fits) == (-1, False)


def test_no_held_out_rows_are_said_and_block_early_stopping(ours: Owned) -> None:
    version = dataset(ours, {"prompt": "1?", "answer": 1})
    found = estimate(ours, dataset_version=version)
    assert found.can_start and "dataset_version" in [check.field for check in found.checks]
    with pytest.raises(InvalidInput) as caught:
        estimate(ours, dataset_version=version, settings={"evaluation": {"every_steps": 5, "patience": 2}})
    assert caught.value.fields[0].field == "evaluation.patience"


# --- over the API ----------------------------------------------------------------------------------------------------


def test_the_api_estimates_too(api: Any, ours: Owned) -> None:
    body = {
        "base_model": ours.job.base_model_id,
        "dataset_version": str(ours.dataset_version.pk),
        "reward_version": str(ours.reward_version.pk),
        "settings": {"training": TRAINING},
    }
    answer = api.post("/api/v1/jobs/estimate/", body, "application/json")
    assert answer.status_code == 200
    found = answer.json()
    assert (found["can_start"], found["episodes"], found["tokens"]["sampled_at_most"]) == (True, 200, 12800)
    assert found["quotas"] == [{"name": "Active jobs", "limit": 4.0, "used": 1.0, "left": 2.0}]
    bad = api.post("/api/v1/jobs/estimate/", {**body, "settings": {"lora": {"rank": 99}}}, "application/json")
    assert bad.json()["error"]["fields"][0]["field"] == "lora.rank"


def test_a_job_without_a_dataset_over_the_api(api: Any, ours: Owned) -> None:
    body = {
        "name": "countdown",
        "base_model": ours.job.base_model_id,
        "reward_version": str(reward(ours, {"type": "environment"}).pk),
        "settings": {"environment": {"type": "reasoning_gym", "dataset": "countdown"}},
    }
    answer = api.post("/api/v1/jobs/", body, "application/json")
    assert (answer.status_code, answer.json()["dataset_version"]) == (201, None)
    job = Job.objects.get(name="countdown")
    assert (job.to_spec().dataset, job.rows_from) == (None, "reasoning-gym countdown")
    without = api.post("/api/v1/jobs/", {**body, "settings": {}}, "application/json")
    assert without.json()["error"]["fields"][0]["field"] == "dataset_version"
