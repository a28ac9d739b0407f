"""Reads of datasets; every function takes the tenant first and sees nothing else's."""

from __future__ import annotations

import itertools
import json
import uuid
from typing import Any

from django.db.models import Count, Max, QuerySet
from django.http import Http404
from django.utils import timezone

from portal.datasets.formats import Record, UnreadableFile, iterate_records
from portal.datasets.models import Dataset, DatasetUpload, DatasetVersion
from portal.tenants.models import Tenant


def list_datasets(tenant: Tenant) -> QuerySet[Dataset]:
    """With ``version_count`` and ``latest_at``; newest upload first; archived ones too."""
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
    return list_rows(tenant, version_id, limit=limit)


def list_rows(tenant: Tenant, version_id: uuid.UUID, *, start: int = 0, limit: int = 20) -> list[dict[str, Any]]:
    """Rows ``start`` and following of a version as stored."""
    version = get_dataset_version(tenant, version_id)
    with version.path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in itertools.islice(file, start, start + limit)]


def count_jobs_of_dataset(tenant: Tenant, dataset_id: uuid.UUID) -> int:
    """How many jobs used any of its versions."""
    found = list_dataset_versions(tenant, dataset_id).aggregate(count=Count("jobs"))
    return int(found["count"])


def list_uploads(tenant: Tenant) -> QuerySet[DatasetUpload]:
    """Those that have not become a version and are not forgotten yet; newest first."""
    uploads = DatasetUpload.objects.filter(tenant=tenant, version=None, expires_at__gt=timezone.now())
    return uploads.order_by("-created_at")


def get_upload(tenant: Tenant, upload_id: uuid.UUID) -> DatasetUpload:
    """An upload, finished ones for a day too. Raises Http404 where the tenant has none under this id."""
    upload = DatasetUpload.objects.filter(tenant=tenant, pk=upload_id, expires_at__gt=timezone.now()).first()
    if upload is None:
        raise Http404("No such upload.")
    return upload


def read_upload_start(upload: DatasetUpload, limit: int) -> tuple[list[Record], str]:
    """The first records of a complete upload, and what stops the reading (empty: nothing does)."""
    records: list[Record] = []
    try:
        for record in itertools.islice(iterate_records(upload.data_path, upload.format), limit):
            records.append(record)
    except UnreadableFile as unreadable:
        return records, unreadable.message
    except FileNotFoundError:
        return [], ""
    return records, ""


def progress_key(upload_id: uuid.UUID) -> str:
    """Of the cache: how far the check of an upload is, from 0 to 1."""
    return f"dataset-upload-progress:{upload_id.hex}"
