"""Writes of what environments need: documents and tokens.

Invariants: a file is complete on disk before its row exists; nothing an unfinished job needs is deleted (jobs are
created under the tenant's lock too, so neither can miss the other); a token's value is sealed and never shown.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from django.contrib.auth.models import User
from django.core.files.base import File
from django.db import transaction
from django.utils import timezone

from engine.spec import NAME_PATTERN
from portal.audit.services import record_change
from portal.environments.documents import DocumentsInvalid, read_documents
from portal.environments.models import DocumentSet, EnvironmentToken, tenant_folder
from portal.environments.selectors import (
    get_document_set,
    get_environment_token,
    list_document_sets,
    list_environment_tokens,
    list_jobs_using,
)
from portal.errors import Conflict, FieldError, InvalidInput, QuotaExceeded
from portal.sealing import get_sealer
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer
from portal.usage.limits import require_storage

CHUNK_BYTES = 64 * 1024
MAX_DOCUMENT_SETS = 100
MAX_TOKENS = 100
MAX_TOKEN_CHARACTERS = 4096
TOKEN_VALUE = re.compile(r"[\x21-\x7e]+")


def create_document_set(*, tenant: Tenant, user: User, name: str, file: BinaryIO | File[bytes]) -> DocumentSet:
    """Store documents for the search tool: JSON lines of ``text`` and optionally ``title``, or paragraphs of text.

    Raises DocumentsInvalid (faults by line), InvalidInput, QuotaExceeded, Conflict (the tenant has the same documents
    already), NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    name = name.strip()
    if not 1 <= len(name) <= 100 or "\x00" in name:
        error = FieldError("name", "Give the documents a name of at most 100 characters.")
        raise InvalidInput("The documents were not stored.", fields=[error])
    folder = _make_folder(tenant, "documents")
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as aside:
        try:
            sha256, count = _write_documents(_limited(file, tenant.max_dataset_bytes), aside)
            with transaction.atomic():
                # The lock makes limits and names race-free.
                tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
                _check_new_documents(tenant, name, sha256)
                require_storage(tenant=tenant, size_bytes=aside.tell())
                made = DocumentSet(tenant=tenant, name=name, sha256=sha256, documents=count, created_by_id=user.pk)
                made.size_bytes = aside.tell()
                Path(aside.name).replace(made.path)
                _fsync_folder(folder)
                made.save()
                record_change(
                    tenant=tenant, user=user, action="documents.uploaded", target=made, label=name,
                    after={"documents": count, "size_bytes": made.size_bytes, "sha256": sha256},
                )  # fmt: skip
        finally:
            Path(aside.name).unlink(missing_ok=True)
    return made


def _limited(file: BinaryIO | File[bytes], limit: int) -> Iterator[bytes]:
    read = 0
    while chunk := file.read(CHUNK_BYTES):
        read += len(chunk)
        if read > limit:
            raise DocumentsInvalid(f"The file is larger than {limit:,} bytes, your tenant's limit.")
        yield chunk


def _write_documents(chunks: Iterator[bytes], aside: IO[bytes]) -> tuple[str, int]:
    """Return the sha256 of what was written and how many documents it holds."""
    digest, count = hashlib.sha256(), 0
    for document in read_documents(chunks):
        encoded = (json.dumps(document, ensure_ascii=False) + "\n").encode()
        digest.update(encoded)
        aside.write(encoded)
        count += 1
    if not count:
        raise DocumentsInvalid("The file holds no document.")
    aside.flush()
    os.fsync(aside.fileno())
    return digest.hexdigest(), count


def _check_new_documents(tenant: Tenant, name: str, sha256: str) -> None:
    existing = list_document_sets(tenant)
    if existing.count() >= MAX_DOCUMENT_SETS:
        raise QuotaExceeded(
            f"{tenant.name} has {MAX_DOCUMENT_SETS} uploads of documents, the limit.", hint="Delete one first."
        )
    same = existing.filter(sha256=sha256).first()
    if same is not None:
        raise Conflict(f"The same documents are there already, as {same.name}.", hint="Use those.")
    if existing.filter(name=name).exists():
        error = FieldError("name", "There are documents of this name. Choose another, or delete those first.")
        raise InvalidInput("The documents were not stored.", fields=[error])


def delete_document_set(*, tenant: Tenant, user: User, document_set_id: uuid.UUID) -> None:
    """Raises Conflict while a job that has not ended uses them, NotAllowed, Http404."""
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        documents = get_document_set(tenant, document_set_id)
        job = list_jobs_using(tenant, documents_sha256=documents.sha256).first()
        if job is not None:
            raise Conflict(f"{job.name} uses these documents.", hint="Wait until it ends, or cancel it.")
        path = documents.path
        record_change(
            tenant=tenant, user=user, action="documents.deleted", target=documents, label=documents.name,
            before={"documents": documents.documents, "sha256": documents.sha256},
        )  # fmt: skip
        documents.delete()
        transaction.on_commit(lambda: path.unlink(missing_ok=True))


def create_environment_token(*, tenant: Tenant, user: User, name: str, value: str) -> EnvironmentToken:
    """Store a secret for remote environments. Raises InvalidInput, QuotaExceeded, NotAllowed, Http404."""
    require_writer(tenant=tenant, user=user)
    name = name.strip()
    errors = _value_errors(value)
    if not re.fullmatch(NAME_PATTERN, name):
        message = "Up to 64 lower-case letters, digits, dots, hyphens and underscores, a letter or digit first."
        errors.append(FieldError("name", message))
    if errors:
        raise InvalidInput("The token was not stored.", fields=errors)
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
        existing = list_environment_tokens(tenant)
        if existing.filter(name=name).exists():
            error = FieldError("name", "There is a token of this name. Replace its value, or choose another name.")
            raise InvalidInput("The token was not stored.", fields=[error])
        if existing.count() >= MAX_TOKENS:
            raise QuotaExceeded(f"{tenant.name} has {MAX_TOKENS} tokens, the limit.", hint="Delete one first.")
        token = EnvironmentToken(tenant=tenant, name=name, created_by_id=user.pk, changed_at=timezone.now())
        _write_token(tenant, token, value)
        token.save()
        record_change(tenant=tenant, user=user, action="environment_token.created", target=token, label=token.name)
    return token


def replace_environment_token(
    *, tenant: Tenant, user: User, environment_token_id: uuid.UUID, value: str
) -> EnvironmentToken:
    """Give a token another value; jobs send it from their next request on. Raises InvalidInput, NotAllowed, Http404."""
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        token = get_environment_token(tenant, environment_token_id)
        if errors := _value_errors(value):
            raise InvalidInput("The token was not replaced.", fields=errors)
        token.changed_at = timezone.now()
        token.save(update_fields=["changed_at"])
        record_change(tenant=tenant, user=user, action="environment_token.replaced", target=token, label=token.name)
        _write_token(tenant, token, value)
    return token


def delete_environment_token(*, tenant: Tenant, user: User, environment_token_id: uuid.UUID) -> None:
    """Raises Conflict while a job that has not ended uses it, NotAllowed, Http404."""
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        Tenant.objects.select_for_update().get(pk=tenant.pk)
        token = get_environment_token(tenant, environment_token_id)
        job = list_jobs_using(tenant, token_name=token.name).first()
        if job is not None:
            raise Conflict(f"{job.name} uses this token.", hint="Wait until it ends, or cancel it.")
        record_change(tenant=tenant, user=user, action="environment_token.deleted", target=token, label=token.name)
        token.path.unlink(missing_ok=True)  # at once: no failure may leave the secret behind a row that is gone
        token.delete()


def _value_errors(value: str) -> list[FieldError]:
    if not value:
        return [FieldError("value", "Give the token's value.")]
    if len(value) > MAX_TOKEN_CHARACTERS or not TOKEN_VALUE.fullmatch(value):
        message = f"A token has at most {MAX_TOKEN_CHARACTERS} characters: printable ASCII, no spaces."
        return [FieldError("value", message)]
    return []


def _write_token(tenant: Tenant, token: EnvironmentToken, value: str) -> None:
    """Sealed; the engine has the same keys."""
    _make_folder(tenant, "tokens")
    write_secret_file(token.path, get_sealer().seal(value))


def write_secret_file(path: Path, text: str) -> None:
    """Written aside with mode 0600 from the start, fsynced and renamed: the engine reads the old or the new value."""
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(aside).replace(path)
    finally:
        Path(aside).unlink(missing_ok=True)
    _fsync_folder(path.parent)


def _make_folder(tenant: Tenant, kind: str) -> Path:
    folder = tenant_folder(tenant.pk) / kind
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
