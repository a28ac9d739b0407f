"""Writes of datasets.

Invariant: nothing is stored of an upload with an error; the file is complete on disk before its row exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from django.conf import settings
from django.contrib.auth.models import User
from django.core.files.base import File
from django.db import transaction
from django.db.models import Max

from portal.audit.services import record_change
from portal.datasets.models import Dataset, DatasetVersion
from portal.datasets.parsing import (
    MAX_ERRORS,
    MAX_LINE_BYTES,
    UTF8_BOM,
    UTF16_BOMS,
    DatasetInvalid,
    LineError,
    RowInvalid,
    excerpt,
    iterate_lines,
    parse_line,
)
from portal.datasets.splitting import HELD_OUT, TRAIN, UNDECIDED, assign_splits, prompt_hash
from portal.errors import FieldError, InvalidInput
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer
from portal.usage.limits import require_storage

__all__ = ["DatasetInvalid", "LineError", "create_dataset_version"]

CHUNK_BYTES = 64 * 1024
SPLIT_NAMES = {TRAIN: "train", HELD_OUT: "held_out"}


def create_dataset_version(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    file: BinaryIO | File[bytes],
    held_out_fraction: float = 0.1,
    seed: int = 0,
) -> DatasetVersion:
    """Add a version to the tenant's dataset ``name``, made where it does not exist.

    ``file`` holds JSON lines: ``prompt`` (text) or ``messages``; optional ``answer`` (text or number), ``metadata``,
    ``split``; other keys go into the metadata. Rows without a split are split by a seeded hash of their prompt.

    Raises DatasetInvalid (faults by line), InvalidInput, QuotaExceeded, NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    name = name.strip()
    errors = []
    if not 1 <= len(name) <= 100:
        errors.append(FieldError("name", "Give the dataset a name of at most 100 characters."))
    if not 0 <= held_out_fraction < 1:
        errors.append(FieldError("held_out_fraction", "must be at least 0 and less than 1"))
    if errors:
        raise InvalidInput("The dataset was not stored.", fields=errors)
    require_storage(tenant=tenant)
    folder = Path(settings.MARLAAS_VAR) / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder) as staged:
        splits, hashes = _stage_rows(_iterate_chunks(file), staged, tenant=tenant, seed=seed)
        splits = assign_splits(splits, hashes, held_out_fraction)
        require_storage(tenant=tenant, size_bytes=staged.tell())  # before the file is stored; exactly below
        staged.seek(0)
        sha256, size_bytes = _store_rows(staged, splits, folder)
    with transaction.atomic():
        # Locking the tenant makes the numbering race-free for the first version too.
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        require_storage(tenant=tenant, size_bytes=size_bytes)
        dataset, _ = Dataset.objects.get_or_create(tenant=tenant, name=name)
        last = dataset.versions.aggregate(last=Max("number"))["last"] or 0
        version = DatasetVersion.objects.create(
            dataset=dataset,
            number=last + 1,
            sha256=sha256,
            rows=len(splits),
            train_rows=splits.count(TRAIN),
            held_out_rows=splits.count(HELD_OUT),
            size_bytes=size_bytes,
            created_by_id=user.pk,
        )
        after = {"rows": version.rows, "held_out_rows": version.held_out_rows, "sha256": sha256, "size": size_bytes}
        record_change(tenant=tenant, user=user, action="dataset.uploaded", target=version, after=after)
    return version


def _iterate_chunks(file: BinaryIO | File[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _stage_rows(
    chunks: Iterable[bytes], staged: IO[str], *, tenant: Tenant, seed: int
) -> tuple[array[int], array[int]]:
    """Write the valid rows to ``staged``, one JSON a line; return each row's split and prompt hash.

    Raises DatasetInvalid after the last line, or at once where the tenant's limits are passed.
    """
    errors = _Errors()
    splits, hashes = array("b"), array("Q")
    for number, line in enumerate(iterate_lines(_limit_bytes(chunks, tenant.max_dataset_bytes)), start=1):
        if line is None:
            errors.add(LineError(number, "", f"is longer than {MAX_LINE_BYTES:,} bytes"))
            continue
        if number == 1:
            if line.startswith(UTF16_BOMS):
                raise DatasetInvalid([LineError(0, "", "The file is UTF-16; save it as UTF-8.")], 1)
            line = line.removeprefix(UTF8_BOM)
        if not line.strip():
            continue
        try:
            row = parse_line(line)
        except RowInvalid as invalid:
            for field, message, value in invalid.faults:
                errors.add(LineError(number, field, message, excerpt(value)))
            continue
        if len(splits) == tenant.max_dataset_rows:
            errors.add(
                LineError(0, "", f"The file has more than {tenant.max_dataset_rows:,} rows, your tenant's limit.")
            )
            break
        splits.append({"train": TRAIN, "held_out": HELD_OUT, None: UNDECIDED}[row.get("split")])
        hashes.append(prompt_hash(row["messages"], seed))
        staged.write(json.dumps(row) + "\n")
    if not errors.total and not splits:
        errors.add(LineError(0, "", "The file has no rows. Each line should be one JSON object with a prompt."))
    if not errors.total and splits.count(HELD_OUT) == len(splits):
        errors.add(LineError(0, "", "Every row has split 'held_out': there is nothing to train on."))
    if errors.total:
        raise DatasetInvalid(errors.first, errors.total)
    return splits, hashes


def _limit_bytes(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    read = 0
    for chunk in chunks:
        read += len(chunk)
        if read > limit:
            raise DatasetInvalid(
                [LineError(0, "", f"The file is larger than {limit:,} bytes, your tenant's limit.")], 1
            )
        yield chunk


class _Errors:
    """The first ``MAX_ERRORS`` and how many there were."""

    def __init__(self) -> None:
        self.first: list[LineError] = []
        self.total = 0

    def add(self, error: LineError) -> None:
        self.total += 1
        if len(self.first) < MAX_ERRORS:
            self.first.append(error)


def _store_rows(staged: Iterable[str], splits: array[int], folder: Path) -> tuple[str, int]:
    """Write the final file, named by the sha256 of its bytes; return that and its size in bytes.

    Written aside, fsynced and renamed: a file under its final name is complete.
    """
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as aside:
        try:
            for line, split in zip(staged, splits, strict=True):
                row: dict[str, Any] = {**json.loads(line), "split": SPLIT_NAMES[split]}
                encoded = (json.dumps(row, ensure_ascii=False) + "\n").encode()
                digest.update(encoded)
                aside.write(encoded)
            aside.flush()
            os.fsync(aside.fileno())
            size_bytes = aside.tell()
            Path(aside.name).replace(folder / f"{digest.hexdigest()}.jsonl")
        except BaseException:
            Path(aside.name).unlink(missing_ok=True)
            raise
    _fsync_folder(folder)
    return digest.hexdigest(), size_bytes


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
