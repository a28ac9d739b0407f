"""Jobs that continue from an adapter version."""

import pytest
from django.http import Http404

from engine.spec import StartFrom
from portal.adapters.models import AdapterVersion
from portal.base_models.models import BaseModel
from portal.base_models.services import BUNDLED_ID
from portal.errors import Conflict, InvalidInput
from portal.jobs.models import Job
from portal.jobs.services import ingest_events
from tests.portal.factories import make_batch, published
from tests.portal.jobs.test_create import create

LORA = {"rank": 4, "alpha": 12.5, "use_rslora": True, "target_modules": []}


@pytest.fixture
def adapter(ours):
    """Version 1 of a job with LoRA settings of its own."""
    job = create(ours, settings={"lora": LORA})
    ingest_events(batch=make_batch(job, published(job, 0), published(job, 1)))
    return job.adapter_versions.get(version=1)


def test_the_engine_is_told_where_to_start(ours, adapter):
    job = create(ours, settings={}, start_from=adapter)
    spec = job.to_spec()
    assert spec.start_from == StartFrom(job_id=adapter.job_id.hex, version=1)
    assert spec.lora.model_dump() == LORA
    assert Job.objects.get(pk=job.pk).start_from == adapter


def test_without_an_adapter_it_starts_from_the_base_model(ours):
    assert create(ours).to_spec().start_from is None


@pytest.mark.parametrize("lora", [{}, {"rank": 4}, {"alpha": 12.5}, LORA])
def test_the_same_lora_settings_may_be_said_again(ours, adapter, lora):
    assert create(ours, settings={"lora": lora}, start_from=adapter).to_spec().lora.model_dump() == LORA


@pytest.mark.parametrize(
    ("lora", "field", "says"),
    [
        ({"rank": 8}, "lora.rank", "must be 4, as in the adapter"),
        ({"alpha": 4}, "lora.alpha", "must be 12.5, as in the adapter"),
        ({"use_rslora": False}, "lora.use_rslora", "must be true, as in the adapter"),
        ({"rnk": 4}, "lora.rnk", "not a known setting"),
        (8, "lora", "must be an object"),
    ],
)
def test_other_lora_settings_are_refused(ours, adapter, lora, field, says):
    with pytest.raises(InvalidInput) as caught:
        create(ours, settings={"lora": lora}, start_from=adapter)
    ((name, message),) = [(error.field, error.message) for error in caught.value.fields]
    assert name == field and says in message


def test_another_base_model_is_refused(ours, adapter):
    other = BaseModel.objects.get()
    other.pk = "other"
    other.save(force_insert=True)
    with pytest.raises(InvalidInput) as caught:
        create(ours, base_model_id="other", settings={}, start_from=adapter)
    (error,) = caught.value.fields
    assert (error.field, error.message.startswith(f"must be {BUNDLED_ID}")) == ("base_model", True)


@pytest.mark.parametrize(("version", "removed", "says"), [(1, True, "Retention removed"), (0, False, "not trained")])
def test_a_version_that_cannot_be_continued_is_refused(ours, adapter, version, removed, says):
    AdapterVersion.objects.filter(pk=adapter.pk).update(removed=removed)
    with pytest.raises(InvalidInput) as caught:
        create(ours, settings={}, start_from=adapter.job.adapter_versions.get(version=version))
    (error,) = caught.value.fields
    assert error.field == "start_from" and says in error.message


def test_a_foreign_adapter_is_not_found(ours, theirs):
    with pytest.raises(Http404):
        create(ours, settings={}, start_from=theirs.adapter)


def test_an_idempotency_key_stands_for_the_adapter_too(ours, adapter):
    first = create(ours, settings={}, start_from=adapter, idempotency_key="k")
    assert create(ours, settings={}, start_from=adapter, idempotency_key="k") == first
    with pytest.raises(Conflict):
        create(ours, settings={}, idempotency_key="k")
