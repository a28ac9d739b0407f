"""The operator's pages."""

import pytest
from django.apps import apps
from django.test import Client

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
