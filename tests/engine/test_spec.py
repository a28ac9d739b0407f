"""The contract refuses what cannot work, where it is entered, and says why."""

import pytest
from pydantic import TypeAdapter, ValidationError

from engine.spec import Grader, JobSpec, SingleTurn, adapter_name
from tests.engine.test_ledger import JOB, make_spec

GRADER = TypeAdapter(Grader)


def changed(**changes):
    """The spec of a good job with some values replaced: ``section__field=value``."""
    data = make_spec().model_dump()
    for path, value in changes.items():
        *sections, name = path.split("__")
        target = data
        for section in sections:
            target = target[section]
        target[name] = value
    return data


def test_a_spec_survives_json():
    spec = make_spec()
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora__rank": 32}, "lora.rank 32 is above the limit of 16 for base model tiny"),
        ({"sampling__max_tokens": 64}, "leaves no room for a prompt in the context of 64 tokens"),
        ({"sampling__top_p": 0.9}, "Extra inputs are not permitted"),
        ({"sampling__temperature": 0}, "greater than 0"),
        ({"training__group_size": 1}, "greater than or equal to 2"),
        ({"training__learning_rate": float("nan")}, "finite number"),
        ({"training__max_grad_norm": float("inf")}, "finite number"),
        ({"training__algorithm": "ppo"}, "grpo"),
        ({"dataset__train_rows": 0}, "greater than or equal to 1"),
        ({"job_id": "../../etc/passwd"}, "pattern"),
        ({"base_model__id": "a b"}, "pattern"),
        ({"spec_version": 2}, "1"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message.replace("(", r"\(")):
        JobSpec.model_validate(changed(**changes))


@pytest.mark.parametrize(
    ("grader", "message"),
    [
        ({"type": "regex", "pattern": "(unclosed"}, "not a valid regular expression"),
        ({"type": "json_schema", "json_schema": {"type": "objekt"}}, "not a valid JSON schema"),
        ({"type": "brevity", "target": 10, "limit": 10}, "limit must be greater than target"),
        ({"type": "mix", "parts": []}, "at least 1 item"),
        (
            {"type": "mix", "parts": [{"name": "a", "weight": 1, "grader": {"type": "maths"}}] * 2},
            "two parts have the same name",
        ),
        ({"type": "mix", "parts": [{"name": "a", "weight": 0, "grader": {"type": "maths"}}]}, "greater than 0"),
        ({"type": "guess"}, "guess"),
    ],
)
def test_a_grader_that_cannot_work_is_refused(grader, message):
    with pytest.raises(ValidationError, match=message):
        GRADER.validate_python(grader)


def test_the_name_of_an_adapter_version():
    assert adapter_name(JOB, 7) == f"job-{JOB}@v7"


@pytest.mark.parametrize(
    "environment",
    [
        {"type": "single_turn", "system_prompt": "Be brief."},
        {"type": "tools", "tools": ["calculator", "search", "python"]},
        {"type": "reasoning_gym", "dataset": "countdown"},
        {"type": "remote", "url": "https://environment.example/v2", "token_name": "arena"},
        {"type": "openenv", "url": "https://environment.example", "action_field": "code"},
    ],
)
def test_every_environment_survives_json(environment):
    spec = JobSpec.model_validate(changed(environment=environment))
    assert spec.environment.type == environment["type"]
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_an_environment_without_a_type_is_a_single_turn():
    assert JobSpec.model_validate(changed(environment={"system_prompt": "Be brief."})).environment == SingleTurn(
        system_prompt="Be brief."
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": {"type": "gym"}}, "does not match any of the expected tags"),
        ({"environment": {"type": "tools", "tools": []}}, "at least 1 item"),
        ({"environment": {"type": "tools", "tools": ["search", "search"]}}, "a tool is named twice"),
        ({"environment": {"type": "tools", "tools": ["shell"]}}, "'calculator', 'search' or 'python'"),
        ({"environment": {"type": "tools", "documents_sha256": "../../etc/passwd"}}, "pattern"),
        ({"environment": {"type": "tools", "max_turns": 0}}, "greater than or equal to 1"),
        ({"environment": {"type": "tools", "turns": 3}}, "Extra inputs are not permitted"),
        ({"environment": {"type": "remote", "url": "https://x.example", "token_name": "../key"}}, "pattern"),
        ({"environment": {"type": "remote", "url": "file:///etc/passwd"}}, "pattern"),
        ({"environment": {"type": "reasoning_gym", "dataset": "x", "config": {"seed": 1}}}, "use train_rows"),
        ({"dataset": None}, "a dataset is needed: environment single_turn makes no rows"),
        ({"reward": {"grader": {"type": "environment"}}}, "single_turn gives none"),
        (
            {
                "reward": {
                    "grader": {"type": "mix", "parts": [{"name": "a", "weight": 1, "grader": {"type": "environment"}}]}
                }
            },
            "single_turn gives none",
        ),
    ],
)
def test_an_environment_that_cannot_serve_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        JobSpec.model_validate(changed(**changes))


def test_only_an_environment_that_makes_rows_needs_no_dataset():
    environment = {"type": "reasoning_gym", "dataset": "countdown"}
    spec = JobSpec.model_validate(changed(environment=environment, dataset=None))
    assert spec.dataset is None
    assert JobSpec.model_validate(changed(environment=environment)).dataset is not None


def test_the_bounds_of_an_environments_reward_are_in_order():
    with pytest.raises(ValidationError, match="high must be greater than low"):
        GRADER.validate_python({"type": "environment", "low": 1, "high": 1})
