"""The demo's tasks hold out what training never sees, and its outcome says plainly how it went."""

from dataclasses import replace

import pytest
from django.contrib.auth.models import User

from engine.spec import EvaluationSettings, RewardSpec, TrainingSettings
from portal.ops.demo import Outcome, failure, prepare_tenants, report
from portal.ops.demo_tasks import demo_tasks
from portal.tenants.selectors import find_api_token

DONE = Outcome(
    tenant="Abacus Labs",
    job="Sums",
    job_id="0" * 32,
    status="succeeded",
    reason="All 20 steps are committed.",
    held_out_accuracy_base=0.25,
    held_out_accuracy_trained=0.875,
    reward_first_step=0.1,
    reward_last_step=0.9,
    steps=20,
    tokens_sampled=1234,
    tokens_trained=1000,
    wall_seconds=200.4,
    adapter="/somewhere/adapter_model.safetensors",
    sha256="f" * 64,
)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_held_out_question_is_trained_on(seed):
    for task in demo_tasks(seed):
        train, held_out = (
            {row["prompt"] for row in task.rows if row["split"] == split} for split in ("train", "held_out")
        )
        assert len(held_out) >= 30
        assert len(train) >= 60
        assert not train & held_out


def test_no_held_out_city_occurs_in_training():
    cities = demo_tasks(0)[1]
    train, held_out = (
        {row["answer"] for row in cities.rows if row["split"] == split} for split in ("train", "held_out")
    )
    assert not train & held_out


def test_tasks_follow_from_the_seed_and_are_valid():
    assert demo_tasks(3) == demo_tasks(3)
    assert demo_tasks(3)[0].rows != demo_tasks(4)[0].rows
    for task in demo_tasks(0):
        RewardSpec.model_validate(task.reward_spec)
        TrainingSettings.model_validate(task.settings["training"])
        EvaluationSettings.model_validate(task.settings["evaluation"])


@pytest.mark.django_db
def test_logins_work_and_are_new_each_time():
    first, second = prepare_tenants(0), prepare_tenants(0)
    for before, now in zip(first, second, strict=True):
        user = User.objects.get(username=now.task.user)
        assert user.check_password(now.password)
        assert not user.check_password(before.password)
        assert find_api_token(before.token) is None
        _, membership = find_api_token(now.token)
        assert membership.tenant.slug == now.task.slug


def test_the_outcome_names_what_failed():
    assert failure([DONE, DONE]) is None
    failed = replace(DONE, tenant="Babel Maps", status="failed", reason="The disk is full.")
    assert failure([DONE, failed]) == "Babel Maps: failed: The disk is full."


def test_the_report_has_every_figure():
    text = report([DONE])
    for figure in (
        "base 0.25 -> trained 0.88",
        "first step 0.10 -> last step 0.90",
        "200 s",
        DONE.adapter,
        DONE.sha256,
    ):
        assert figure in text
    assert "base - -> trained -" in report([replace(DONE, held_out_accuracy_base=None, held_out_accuracy_trained=None)])
