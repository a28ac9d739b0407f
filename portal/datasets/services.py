"""Writes of datasets and their versions.

Invariants: a version's file is complete on disk before its row exists; a file is removed only when no version names it
(uploads hold the folder's lock shared from writing the file to the row, removals hold it alone).
"""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from portal.audit.services import record_change
from portal.datasets.building import BuildOptions, Built, RepeatsFound, Source, build_file
from portal.datasets.formats import Tick, detect_format
from portal.datasets.models import Dataset, DatasetUpload, DatasetVersion
from portal.datasets.parsing import DatasetInvalid, LineError
from portal.datasets.receiving import Readable, append_stream, file_lock, unpack_gzip
from portal.datasets.selectors import count_jobs_of_dataset, get_dataset
from portal.errors import Conflict, FieldError, InvalidInput
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer
from portal.usage.limits import require_storage

__all__ = [
    "DatasetInvalid",
    "LineError",
    "RepeatsFound",
    "archive_dataset",
    "create_dataset_version",
    "delete_dataset",
    "restore_dataset",
]

LOCK_NAME = ".lock"


def create_dataset_version(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    file: Readable,
    held_out_fraction: float = 0.1,
    seed: int = 0,
) -> DatasetVersion:
    """Add a version to the tenant's dataset ``name``, made where it does not exist, or store nothing.

    ``file`` holds JSON lines, CSV or Parquet with ``prompt`` (text) or ``messages``; optional ``answer`` (text or
    number), ``metadata``, ``split``; other columns go into the metadata. Rows without a split are split by a seeded
    hash of their prompt. ``portal.datasets.uploads`` does the same in steps, with a mapping and other choices.

    Raises DatasetInvalid (faults by line), InvalidInput, QuotaExceeded, Conflict, NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    options = BuildOptions(held_out_fraction=held_out_fraction, seed=seed)
    name = check_version_input(tenant=tenant, name=name, options=options)
    require_storage(tenant=tenant)
    with tempfile.TemporaryDirectory(dir=settings.FILE_UPLOAD_TEMP_DIR) as folder:
        path = Path(folder) / "data"
        append_stream(file, path, limit=tenant.max_dataset_bytes)
        unpack_gzip(path, limit=tenant.max_dataset_bytes)
        main = Source(path, detect_format(path))
        return store_version(
            tenant=tenant, user=user, name=name, main=main, options=options, faults=Path(folder) / "errors.csv"
        )


def check_version_input(*, tenant: Tenant, name: str, options: BuildOptions) -> str:
    """The name as stored. Raises InvalidInput for what is out of range, Conflict for an archived dataset's name."""
    name = check_name(tenant=tenant, name=name)
    errors = []
    if not 0 <= options.held_out_fraction < 1:
        errors.append(FieldError("held_out_fraction", "must be at least 0 and less than 1"))
    if options.held_out_rows is not None and options.held_out_rows < 0:
        errors.append(FieldError("held_out_rows", "must be at least 0"))
    if errors:
        raise InvalidInput("The dataset was not stored.", fields=errors)
    return name


def check_name(*, tenant: Tenant, name: str) -> str:
    """The name as stored. Raises InvalidInput, Conflict."""
    name = name.strip()
    if not 1 <= len(name) <= 100 or "\0" in name:
        message = "Give the dataset a name of at most 100 characters."
        raise InvalidInput("The dataset was not stored.", fields=[FieldError("name", message)])
    if Dataset.objects.filter(tenant=tenant, name=name, archived_at__isnull=False).exists():
        raise Conflict(
            f"The dataset {name!r} is archived.",
            fields=[FieldError("name", "An archived dataset has this name. Restore that one, or choose another name.")],
        )
    return name


def store_version(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    main: Source,
    options: BuildOptions,
    faults: Path,
    held_out: Source | None = None,
    upload: DatasetUpload | None = None,
    tick: Tick = lambda fraction: None,
) -> DatasetVersion:
    """Build the version's file and its row; the upload, where it comes from one, is marked as done with it."""
    # Before the work; exactly under the tenant's lock. The version takes the place of what was sent.
    require_storage(tenant=tenant, freed=upload.size_bytes if upload else 0)
    folder = Path(settings.MARLAAS_VAR) / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / LOCK_NAME, shared=True):
        built = build_file(
            main=main,
            held_out=held_out,
            options=options,
            folder=folder,
            max_rows=tenant.max_dataset_rows,
            faults=faults,
            tick=tick,
        )
        return _record_version(
            tenant=tenant,
            user=user,
            name=name,
            built=built,
            origin=_describe(built, main, held_out, options, upload),
            upload=upload,
        )


def _record_version(
    *, tenant: Tenant, user: User, name: str, built: Built, origin: dict[str, Any], upload: DatasetUpload | None
) -> DatasetVersion:
    with transaction.atomic():
        # Locking the tenant makes the numbering race-free for the first version too.
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        require_storage(tenant=tenant, size_bytes=built.size_bytes, freed=upload.size_bytes if upload else 0)
        dataset, _ = Dataset.objects.get_or_create(tenant=tenant, name=name)
        last = dataset.versions.aggregate(last=Max("number"))["last"] or 0
        version = DatasetVersion.objects.create(
            dataset=dataset,
            number=last + 1,
            sha256=built.sha256,
            rows=len(built.splits),
            train_rows=built.train_rows,
            held_out_rows=built.held_out_rows,
            size_bytes=built.size_bytes,
            origin=origin,
            created_by_id=user.pk,
        )
        if upload is not None:
            upload.version = version
            upload.save(update_fields=["version"])
        after = {
            "rows": version.rows,
            "held_out_rows": version.held_out_rows,
            "sha256": built.sha256,
            "size": built.size_bytes,
        }
        record_change(tenant=tenant, user=user, action="dataset.uploaded", target=version, after=after)
    return version


def _describe(
    built: Built, main: Source, held_out: Source | None, options: BuildOptions, upload: DatasetUpload | None
) -> dict[str, Any]:
    choices = asdict(options) | {"mapping": options.mapping.model_dump() if options.mapping else None}
    if held_out is not None:
        del choices["held_out_fraction"], choices["held_out_rows"]
    return {
        **choices,
        "file_name": upload.file_name if upload else "",
        "format": main.format,
        "held_out_file": held_out is not None,
        "skipped_rows": built.skipped_rows,
        "duplicate_rows": built.duplicates,
        "overlapping_rows": built.overlap,
    }


def archive_dataset(*, tenant: Tenant, user: User, dataset_id: uuid.UUID) -> Dataset:
    """Take it out of the lists. Its versions stay, for the jobs that used them."""
    return _set_archived(tenant=tenant, user=user, dataset_id=dataset_id, archived=True)


def restore_dataset(*, tenant: Tenant, user: User, dataset_id: uuid.UUID) -> Dataset:
    """Put an archived dataset back into the lists."""
    return _set_archived(tenant=tenant, user=user, dataset_id=dataset_id, archived=False)


def _set_archived(*, tenant: Tenant, user: User, dataset_id: uuid.UUID, archived: bool) -> Dataset:
    dataset = get_dataset(tenant, dataset_id)
    require_writer(tenant=tenant, user=user)
    if archived != (dataset.archived_at is not None):
        dataset.archived_at = timezone.now() if archived else None
        action = "dataset.archived" if archived else "dataset.restored"
        with transaction.atomic():
            dataset.save(update_fields=["archived_at"])
            record_change(tenant=tenant, user=user, action=action, target=dataset)
    return dataset


def delete_dataset(*, tenant: Tenant, user: User, dataset_id: uuid.UUID) -> None:
    """Remove a dataset no job has used, with its files. Raises Conflict where one has: archive it instead."""
    dataset = get_dataset(tenant, dataset_id)
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        # Jobs are created under the tenant's lock too: none can take a version meanwhile.
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        if used := count_jobs_of_dataset(tenant, dataset.pk):
            raise Conflict(
                f"{used} job(s) used the dataset {dataset.name!r}, so it stays.",
                hint="Archive it: it leaves the lists, and the jobs can still be repeated.",
            )
        digests = set(dataset.versions.values_list("sha256", flat=True))
        record_change(
            tenant=tenant, user=user, action="dataset.deleted", target=dataset, before={"versions": len(digests)}
        )
        dataset.delete()
    _remove_files(digests)


def _remove_files(digests: set[str]) -> None:
    """Those no version names; another tenant may have stored the same bytes."""
    folder = Path(settings.MARLAAS_VAR) / "datasets"
    with file_lock(folder / LOCK_NAME):
        named = set(DatasetVersion.objects.filter(sha256__in=digests).values_list("sha256", flat=True))
        for sha256 in digests - named:
            (folder / f"{sha256}.jsonl").unlink(missing_ok=True)
