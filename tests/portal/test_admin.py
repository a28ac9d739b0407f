"""The operator's pages."""

import pytest
from django.apps import apps
from django.test import Client

from portal.audit.models import AuditEntry
from portal.tenants.services import create_api_token


@pytest.fixture
def operator(client: Client, admin_user) -> Client:
    client.force_login(admin_user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_admins_see_no_token_hash(ours, operator):
    token, _ = create_api_token(tenant=ours.tenant, user=ours.user, name="laptop")
    page = operator.get(f"/admin/tenants/apitoken/{token.pk}/change/")
    assert page.status_code == 200
    assert token.prefix in page.content.decode()
    assert token.hash not in page.content.decode()


@pytest.mark.parametrize(
    "model",
    [
        "tenants/tenant",
        "tenants/membership",
        "base_models/basemodel",
        "datasets/dataset",
        "datasets/datasetversion",
        "rewards/rewardfunction",
        "rewards/rewardversion",
        "jobs/job",
        "jobs/jobevent",
        "adapters/adapterversion",
        "usage/usagerecord",
        "webhooks/endpoint",
        "webhooks/delivery",
    ],
)
def test_admin_pages_open(ours, operator, model):
    assert operator.get(f"/admin/{model}/").status_code == 200
    pk = apps.get_model(model.replace("/", ".")).objects.first().pk
    assert operator.get(f"/admin/{model}/{pk}/change/").status_code == 200


@pytest.mark.parametrize("model", ["tenants/tenant", "base_models/basemodel"])
def test_a_change_needs_a_reason(ours, operator, model):
    kind = apps.get_model(model.replace("/", "."))
    pk, before = kind.objects.first().pk, kind.objects.values().first()
    address = f"/admin/{model}/{pk}/change/"
    form = operator.get(address).context["adminform"].form
    values = {name: value for name, value in form.initial.items() if value not in (None, False)}
    management = {f"memberships-{name}_FORMS": 0 for name in ("TOTAL", "INITIAL")}
    changed = {**values, **management, "name": "New", "description": "New"}
    answer = operator.post(address, changed)
    assert answer.status_code == 200 and "audit_reason" in answer.context["adminform"].form.errors
    assert kind.objects.values().first() == before
    assert operator.post(address, {**changed, "audit_reason": "asked for"}).status_code == 302
    assert AuditEntry.objects.filter(action=f"{kind._meta.model_name}.changed").get().reason == "asked for"


@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        ({"source": "local", "location": "models/x"}, "location", "Must be an absolute folder"),
        ({"context_length": 8}, "context_length", "Must be greater than or equal to 16"),
        ({"max_lora_rank": 0}, "max_lora_rank", "Must be greater than or equal to 1"),
        ({"context_length": ""}, "context_length", "This field is required."),
    ],
)
def test_what_is_wrong_with_a_base_model_stands_at_the_field(operator, wrong, field, words):
    right = {
        "id": "x",
        "source": "bundled",
        "location": "p",
        "context_length": 64,
        "max_lora_rank": 8,
        "dtype": "float32",
    }
    errors = operator.post("/admin/base_models/basemodel/add/", {**right, **wrong}).context["adminform"].form.errors
    assert list(errors) == [field] and len(errors[field]) == 1 and words in errors[field][0]


def test_pages_lead_to_each_other(ours, operator):
    assert "/engine/" in operator.get("/admin/").content.decode()
    tenants = operator.get("/admin/tenants/tenant/").content.decode()
    assert f"/admin/jobs/job/?tenant__id__exact={ours.tenant.pk}" in tenants
    assert operator.get(f"/admin/jobs/job/?tenant__id__exact={ours.tenant.pk}").status_code == 200
    assert operator.get(f"/admin/jobs/job/?base_model__id__exact={ours.job.base_model_id}").status_code == 200
    events = operator.get(f"/admin/jobs/jobevent/?job__id__exact={ours.job.pk}")
    assert events.context["cl"].result_count == 3
    assert f"/engine/pools/{ours.job.base_model_id}/" in operator.get("/admin/base_models/basemodel/").content.decode()
