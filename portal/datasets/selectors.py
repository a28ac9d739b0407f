"""Reads of datasets; every function takes the tenant first and sees nothing else's."""

from __future__ import annotations

import itertools
import json
import uuid
from typing import Any

from django.db.models import Count, Max, QuerySet
from django.http import Http404

from portal.datasets.models import Dataset, DatasetVersion
from portal.tenants.models import Tenant


def list_datasets(tenant: Tenant) -> QuerySet[Dataset]:
    """With ``version_count`` and ``latest_at``; newest upload first."""
    return (
        Dataset.objects.filter(tenant=tenant)
        .annotate(version_count=Count("versions"), latest_at=Max("versions__created_at"))
        .prefetch_related("versions")
        .order_by("-latest_at")
    )


def get_dataset(tenant: Tenant, dataset_id: uuid.UUID) -> Dataset:
    """Raises Http404 where the tenant has no such dataset."""
    dataset = list_datasets(tenant).filter(pk=dataset_id).first()
    if dataset is None:
        raise Http404("No such dataset.")
    return dataset


def list_dataset_versions(tenant: Tenant, dataset_id: uuid.UUID | None = None) -> QuerySet[DatasetVersion]:
    """Newest first; of one dataset, or of all of the tenant's."""
    versions = DatasetVersion.objects.filter(dataset__tenant=tenant).select_related("dataset").order_by("-created_at")
    return versions.filter(dataset_id=dataset_id) if dataset_id else versions


def get_dataset_version(tenant: Tenant, version_id: uuid.UUID) -> DatasetVersion:
    """Raises Http404 where the tenant has no such version."""
    version = list_dataset_versions(tenant).filter(pk=version_id).first()
    if version is None:
        raise Http404("No such dataset version.")
    return version


def preview_rows(tenant: Tenant, version_id: uuid.UUID, *, limit: int = 20) -> list[dict[str, Any]]:
    """The first rows of a version as stored (``engine.spec.DatasetRow``)."""
    version = get_dataset_version(tenant, version_id)
    with version.path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in itertools.islice(file, limit)]
