"""The archive a tenant downloads: weights, PEFT config and a model card.

Invariant: only files inside the engine's folder are ever read, whatever path an event named, and weights whose digest
differs from the recorded one are not handed out.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from django.conf import settings

from portal.adapters.card import WEIGHTS, render_card
from portal.adapters.models import AdapterVersion
from portal.errors import ServiceError

CONFIG, CARD = "adapter_config.json", "README.md"
CHUNK_BYTES = 1024 * 1024
ZIP_TIME = (1980, 1, 1, 0, 0, 0)


class AdapterUnavailable(ServiceError):
    """The files of an adapter version cannot be handed out."""

    code = "adapter_unavailable"
    status = 409


def build_bundle(*, adapter: AdapterVersion) -> IO[bytes]:
    """Return an open temporary file with the archive, at its start. Raises AdapterUnavailable."""
    archive = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 (the caller closes it)
    # Weights do not compress: stored.
    with zipfile.ZipFile(archive, "w", compression=zipfile.ZIP_STORED) as bundle:
        digest = _add_file(bundle, _locate(adapter, WEIGHTS))
        if digest != adapter.sha256:
            raise AdapterUnavailable(f"The stored weights of {adapter.name} are damaged.", hint="Tell the operator.")
        _add_file(bundle, _locate(adapter, CONFIG))
        bundle.writestr(zipfile.ZipInfo(CARD, ZIP_TIME), render_card(adapter))
    archive.seek(0)
    return archive


def _locate(adapter: AdapterVersion, name: str) -> Path:
    store = (Path(settings.MARLAAS_VAR) / "engine").resolve()
    file = (Path(adapter.path) / name).resolve()
    if not file.is_relative_to(store) or not file.is_file():
        raise AdapterUnavailable(f"The files of {adapter.name} are not in the store.", hint="Tell the operator.")
    return file


def _add_file(bundle: zipfile.ZipFile, file: Path) -> str:
    """Copy ``file`` into the archive in chunks; return its sha256."""
    digest = hashlib.sha256()
    with file.open("rb") as source, bundle.open(zipfile.ZipInfo(file.name, ZIP_TIME), "w", force_zip64=True) as target:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            target.write(chunk)
    return digest.hexdigest()
