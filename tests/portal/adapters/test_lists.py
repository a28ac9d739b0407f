"""Lists of adapter versions and what adds them up follow an index of their tenant, whatever its jobs are."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Sum

from portal.adapters.models import AdapterVersion
from portal.adapters.selectors import list_adapter_versions
from portal.usage.meters import sum_storage
from tests.portal.factories import build_owned
from tests.portal.jobs.test_create import ensure_bundled_base_model
from tests.portal.plans import assert_follows_index, only_sqlite


def test_a_version_names_the_tenant_of_its_job(ours, theirs):
    assert AdapterVersion.objects.get(job=ours.job).tenant == ours.tenant
    assert [adapter.job for adapter in list_adapter_versions(theirs.tenant)] == [theirs.job]


def test_storage_counts_what_is_kept(ours):
    """Beside the adapters there are datasets, drafts and documents; removing the one adapter takes off its size."""
    before, size = sum_storage(ours.tenant), ours.adapter.size_bytes
    assert size > 0
    AdapterVersion.objects.filter(pk=ours.adapter.pk).update(removed=True)
    assert sum_storage(ours.tenant) == before - size


@only_sqlite
@pytest.mark.parametrize(
    ("narrow", "order", "index"),
    [
        ({}, ["-created_at", "-pk"], "adapter_newest_of_tenant"),
        ({"final": True}, ["-created_at", "-pk"], "adapter_newest_of_tenant"),
        ({"removed": False}, ["-final", "-created_at"], "adapter_kept_of_tenant"),
        ({"removed": False, "final": True}, ["-final", "-created_at"], "adapter_kept_of_tenant"),
    ],
)
def test_a_page_is_read_in_the_order_of_an_index(ours, narrow, order, index):
    rows = list_adapter_versions(ours.tenant).filter(**narrow).order_by(*order)[:26]
    assert_follows_index(rows, index)


@only_sqlite
def test_storage_is_added_up_from_an_index_alone(ours):
    kept = AdapterVersion.objects.filter(tenant=ours.tenant, removed=False).order_by()
    summed = kept.values("tenant").annotate(total=Sum("size_bytes"))
    assert "USING COVERING INDEX adapter_kept_of_tenant" in summed.explain()


@pytest.mark.django_db(transaction=True)
def test_versions_of_before_get_the_tenant_of_their_job():
    ensure_bundled_base_model()
    owned = build_owned("old")
    try:
        MigrationExecutor(connection).migrate([("adapters", "0002_initial")])
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes())
    assert AdapterVersion.objects.get(pk=owned.adapter.pk).tenant_id == owned.tenant.pk
