"""Writes of uploads: receive the bytes in pieces, look at them, check and store them.

Invariants: nothing sent is lost to a fault in it: an upload stays for ``KEPT`` until it is stored or deleted; the size
of its file is the offset to go on from; finishing twice gives the same version. What was sent counts as storage, and
what a piece may still bring is reserved before it is read, so that pieces sent at once never exceed a quota together.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import transaction
from django.utils import timezone

from portal.datasets.building import BuildOptions, RepeatsFound, Source
from portal.datasets.formats import FORMATS, Tick, detect_format
from portal.datasets.models import DatasetUpload, DatasetVersion
from portal.datasets.parsing import DatasetInvalid
from portal.datasets.receiving import (
    Readable,
    append_stream,
    file_lock,
    file_size,
    is_packed,
    too_large,
    unpack_gzip,
)
from portal.datasets.selectors import get_upload, list_uploads, progress_key
from portal.datasets.services import check_name, check_version_input, store_version
from portal.errors import Conflict, FieldError, InvalidInput, Limit, QuotaExceeded
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer
from portal.usage.limits import find_storage_room, require_storage, storage_full
from portal.usage.meters import get_quotas

KEPT = timedelta(days=1)
MAX_UPLOADS = 20
PROGRESS_SECONDS = 0.3
PARTS = ("data", "held_out")


def create_upload(
    *, tenant: Tenant, user: User, name: str, file_name: str = "", format: str = "", size_bytes: int | None = None
) -> DatasetUpload:
    """Begin an upload for the dataset ``name``. ``size_bytes``, where known, is checked against the limit at once.

    Raises InvalidInput, Conflict (the name is an archived dataset's), DatasetInvalid, QuotaExceeded, NotAllowed.
    """
    require_writer(tenant=tenant, user=user)
    name = check_name(tenant=tenant, name=name)
    if format and format not in FORMATS:
        message = f"must be one of {', '.join(FORMATS)}"
        raise InvalidInput("The upload was not begun.", fields=[FieldError("format", message)])
    if size_bytes is not None and size_bytes > tenant.max_dataset_bytes:
        raise too_large(tenant.max_dataset_bytes)
    with transaction.atomic():
        Tenant.objects.select_for_update().get(pk=tenant.pk)  # so that two cannot take the last place
        count = list_uploads(tenant).count()
        if count >= MAX_UPLOADS:
            raise QuotaExceeded(
                f"There are {MAX_UPLOADS} unfinished uploads, the most there may be.",
                hint="Finish or delete some of them.",
                limit=Limit("unfinished_uploads", used=count, limit=MAX_UPLOADS),
            )
        require_storage(tenant=tenant, size_bytes=size_bytes or 0)
        upload = DatasetUpload.objects.create(
            tenant=tenant,
            created_by_id=user.pk,
            name=name,
            file_name=file_name.replace("\0", "")[-200:],
            format=format,
            expires_at=timezone.now() + KEPT,
        )
    upload.folder.mkdir(parents=True)
    return upload


def append_to_upload(
    *,
    tenant: Tenant,
    user: User,
    upload_id: uuid.UUID,
    stream: Readable,
    offset: int,
    part: str = "data",
    length: int | None = None,
) -> int:
    """Add a piece that begins at ``offset`` of the part; return the offset of the next. ``length``: its bytes, where
    that is known.

    Raises Conflict where the part has another size (a piece sent twice, or one lost), DatasetInvalid above the
    tenant's limit, QuotaExceeded where there is no room for it, InvalidInput, NotAllowed, Http404.
    """
    upload = _open_upload(tenant, user, upload_id)
    if part not in PARTS:
        message = f"must be one of {', '.join(PARTS)}"
        raise InvalidInput("The piece was not taken.", fields=[FieldError("part", message)])
    path = upload.data_path if part == "data" else upload.held_out_path
    with _lock(upload):
        if upload.complete:
            raise Conflict("The upload is complete.", hint="Finish it, or begin another.")
        size = file_size(path)
        if size != offset:
            raise Conflict(
                f"The part has {size} bytes, so the next piece begins at offset {size}, not {offset}.",
                fields=[FieldError("offset", f"must be {size}")],
                hint="Go on from that offset.",
            )
        with _reserve(tenant, upload, length) as room:
            other = file_size(upload.held_out_path if part == "data" else upload.data_path)
            return append_stream(stream, path, limit=min(size + room.bytes, room.most - other), refuse=room.refuse)


def complete_upload(*, tenant: Tenant, user: User, upload_id: uuid.UUID) -> DatasetUpload:
    """No more bytes will come: unpack what is packed, find out the format.

    Raises DatasetInvalid where the gzip data is broken, QuotaExceeded where there is no room for what it holds,
    NotAllowed, Http404.
    """
    upload = _open_upload(tenant, user, upload_id)
    with _lock(upload):
        if not upload.complete:
            upload.data_path.touch()
            for path in (upload.data_path, upload.held_out_path):
                if path.exists() and is_packed(path):
                    with _reserve(tenant, upload, None) as room:
                        limit = min(room.most, file_size(path) + room.bytes)
                        unpack_gzip(path, limit=limit, refuse=room.refuse)
            upload.format = upload.format or detect_format(upload.data_path, upload.file_name)
            upload.complete = True
            upload.save(update_fields=["format", "complete"])
    return upload


def replace_upload_text(*, tenant: Tenant, user: User, upload_id: uuid.UUID, text: str) -> DatasetUpload:
    """Put a corrected text in the place of what was sent."""
    upload = _open_upload(tenant, user, upload_id)
    content = text.encode("utf-8", "surrogatepass")
    if len(content) > tenant.max_dataset_bytes:
        raise too_large(tenant.max_dataset_bytes)
    with _lock(upload), _reserve(tenant, upload, max(0, len(content) - file_size(upload.data_path))):
        aside = upload.data_path.with_suffix(".new")
        aside.write_bytes(content)
        aside.replace(upload.data_path)
        upload.report = {}
        upload.complete = True
        upload.save(update_fields=["report", "complete"])
    return upload


def finish_upload(*, tenant: Tenant, user: User, upload_id: uuid.UUID, options: BuildOptions) -> DatasetVersion:
    """Check every row and store the version; what was found wrong stays readable at the upload.

    Raises DatasetInvalid (faults by line), RepeatsFound, InvalidInput, Conflict, NotAllowed, Http404.
    """
    upload = complete_upload(tenant=tenant, user=user, upload_id=upload_id)
    with _lock(upload):
        upload.refresh_from_db()
        if upload.version is not None:
            return upload.version
        name = check_version_input(tenant=tenant, name=upload.name, options=options)
        main = Source(upload.data_path, upload.format)
        held_out = None
        if upload.held_out_path.exists():
            held_out = Source(upload.held_out_path, detect_format(upload.held_out_path))
        try:
            version = store_version(
                tenant=tenant,
                user=user,
                name=name,
                main=main,
                held_out=held_out,
                options=options,
                faults=upload.errors_path,
                upload=upload,
                tick=_progress_of(upload),
            )
        except DatasetInvalid as invalid:
            _report(upload, errors=[asdict(error) for error in invalid.errors], total=invalid.total, rows=invalid.rows)
            raise
        except RepeatsFound as found:
            _report(upload, duplicates=found.duplicates, overlap=found.overlap, rows=found.rows)
            raise
        finally:
            cache.delete(progress_key(upload.pk))
    for path in (upload.data_path, upload.held_out_path):
        path.unlink(missing_ok=True)
    return version


def receive_version(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    stream: Readable,
    options: BuildOptions,
    file_name: str = "",
    format: str = "",
    size_bytes: int | None = None,
) -> DatasetVersion:
    """All steps at once. Where the rows are refused, the error's ``upload_id`` names the upload that is kept.

    Raises what the single steps raise.
    """
    upload = create_upload(
        tenant=tenant, user=user, name=name, file_name=file_name, format=format, size_bytes=size_bytes
    )
    try:
        append_to_upload(tenant=tenant, user=user, upload_id=upload.pk, stream=stream, offset=0, length=size_bytes)
        complete_upload(tenant=tenant, user=user, upload_id=upload.pk)
    except BaseException:
        delete_upload(tenant=tenant, user=user, upload_id=upload.pk)
        raise
    try:
        return finish_upload(tenant=tenant, user=user, upload_id=upload.pk, options=options)
    except (DatasetInvalid, RepeatsFound) as error:
        error.upload_id = upload.pk
        raise


def delete_upload(*, tenant: Tenant, user: User, upload_id: uuid.UUID) -> None:
    """Forget what was sent."""
    upload = get_upload(tenant, upload_id)
    require_writer(tenant=tenant, user=user)
    shutil.rmtree(upload.folder, ignore_errors=True)
    upload.delete()


def delete_expired_uploads() -> int:
    """Forget uploads whose day has passed, and the folders of those deleted with their tenant or dataset; how many.
    What a request that was cut off had reserved is given back.

    Folders go first: what fails is tried again.
    """
    expired = list(DatasetUpload.objects.filter(expires_at__lt=timezone.now()))
    for upload in expired:
        shutil.rmtree(upload.folder, ignore_errors=True)
        upload.delete()
    # An upload's row is there before its folder, so a folder without one belongs to none.
    folders = {folder.name: folder for folder in (Path(settings.MARLAAS_VAR) / "uploads").glob("*/*")}
    known = {pk.hex for pk in DatasetUpload.objects.filter(pk__in=folders).values_list("pk", flat=True)}
    strays = [folder for name, folder in folders.items() if name not in known]
    for folder in strays:
        shutil.rmtree(folder, ignore_errors=True)
    for upload in DatasetUpload.objects.filter(reserved_bytes__gt=0):
        with suppress(Conflict), _lock(upload):  # one that is busy will give back itself
            _settle(upload)
    return len(expired) + len(strays)


def _open_upload(tenant: Tenant, user: User, upload_id: uuid.UUID) -> DatasetUpload:
    upload = get_upload(tenant, upload_id)
    require_writer(tenant=tenant, user=user)
    return upload


@contextmanager
def _lock(upload: DatasetUpload) -> Iterator[None]:
    """One request at a time works on an upload."""
    upload.folder.mkdir(parents=True, exist_ok=True)
    with file_lock(_lock_path(upload), wait=False):
        yield


@dataclass(frozen=True)
class Room:
    """What one request may add to an upload."""

    bytes: int
    most: int
    """Bytes an upload of the tenant may have in all."""
    full: QuotaExceeded | None = None
    """What is said above ``bytes`` where storage is what limits them."""

    def refuse(self, limit: int) -> Exception:
        return self.full or too_large(self.most)


@contextmanager
def _reserve(tenant: Tenant, upload: DatasetUpload, length: int | None) -> Iterator[Room]:
    """Set storage aside for ``length`` bytes more, or, where that is not known, for as much as there may come. Raises
    QuotaExceeded. Call it with the upload's lock held."""
    with transaction.atomic():
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        left = max(0, tenant.max_dataset_bytes - _size_on_disk(upload))
        if length is not None and length <= left:
            if length:  # less may always take the place of more
                require_storage(tenant=tenant, size_bytes=length)
            room = Room(length, tenant.max_dataset_bytes)
        else:
            stored = find_storage_room(tenant)
            full = None
            if stored is not None and stored < left:
                limit = get_quotas(tenant).max_storage_bytes or 0
                full = storage_full(tenant, used=limit - stored, limit=limit)
            room = Room(left if full is None else stored or 0, tenant.max_dataset_bytes, full)
        DatasetUpload.objects.filter(pk=upload.pk).update(reserved_bytes=room.bytes)
    try:
        yield room
    finally:
        _settle(upload)


def _settle(upload: DatasetUpload) -> None:
    """What is on the disk counts, and no more is set aside."""
    upload.size_bytes, upload.reserved_bytes = _size_on_disk(upload), 0
    row = DatasetUpload.objects.filter(pk=upload.pk)  # gone where it was deleted meanwhile
    row.update(size_bytes=upload.size_bytes, reserved_bytes=0)


def _size_on_disk(upload: DatasetUpload) -> int:
    return file_size(upload.data_path) + file_size(upload.held_out_path)


def _lock_path(upload: DatasetUpload) -> Path:
    return upload.folder / "lock"


def _report(upload: DatasetUpload, **found: Any) -> None:
    upload.report = found
    upload.save(update_fields=["report"])


def _progress_of(upload: DatasetUpload) -> Tick:
    """Write the progress where a page can read it, a few times a second."""
    key, last = progress_key(upload.pk), [0.0]

    def tick(fraction: float) -> None:
        now = time.monotonic()
        if now - last[0] >= PROGRESS_SECONDS:
            last[0] = now
            cache.set(key, fraction, 600)

    return tick
