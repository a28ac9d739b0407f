"""What a tenant uploaded for its environments: ``<folder>/<tenant id>/documents/<sha256>.jsonl`` and
``<folder>/<tenant id>/tokens/<name>``, which is sealed (``engine.spec.sealing``).

Invariant: a spec names a file by digest or by name and never by path, and only files of its own tenant are found.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from engine.data import DatasetError
from engine.spec.sealing import CannotOpen, read_sealer

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MAX_DOCUMENTS = 100_000


class Document(BaseModel):
    """One document that can be searched."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str = Field(min_length=1)
    title: str = ""


ROW_DOCUMENTS: TypeAdapter[list[str | Document]] = TypeAdapter(list[str | Document])


@dataclass(frozen=True)
class TenantFiles:
    """Files of one tenant."""

    folder: Path | None
    """None: this engine keeps none."""
    tenant_id: str

    def documents(self, sha256: str) -> list[Document]:
        """Read a file of documents; takes seconds, so call it in a thread.

        Raises:
            DatasetError: it is not there, was changed, or a line is no document.
        """
        path = self._path("documents", f"{sha256}.jsonl")
        content = _read(path)
        if content is None:
            raise DatasetError(f"The documents {sha256[:12]}... are not there; upload them again.")
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DatasetError(
                f"The documents {sha256[:12]}... were changed after they were uploaded; upload them again."
            )
        lines = [line for line in content.split(b"\n") if line.strip()]
        if len(lines) > MAX_DOCUMENTS:
            raise DatasetError(f"The documents are {len(lines)}, more than {MAX_DOCUMENTS}; leave some out.")
        return [_parse(number, line) for number, line in enumerate(lines, 1)]

    def token(self, name: str) -> str:
        """A bearer token. Raises DatasetError where there is none of this name, or it was sealed with other keys than
        this process has."""
        content = _read(self._path("tokens", name))
        token = (content or b"").decode("ascii", errors="replace").strip()
        if self.folder is not None:
            try:
                token = read_sealer(self.folder.parent).open(token)
            except CannotOpen as error:
                raise DatasetError(f"The token {name!r} for remote environments cannot be read. {error}") from None
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise DatasetError(f"There is no usable token {name!r} for remote environments; store it first.")
        return token

    def _path(self, kind: str, name: str) -> Path | None:
        if self.folder is None or not TENANT.fullmatch(self.tenant_id):
            return None
        return self.folder / self.tenant_id / kind / name


def row_documents(metadata: dict[str, object]) -> list[Document]:
    """The documents a row brings along. Raises DatasetError where they are not what ``engine.spec.Tools`` asks for."""
    try:
        found = ROW_DOCUMENTS.validate_python(metadata.get("documents", []))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise DatasetError(f"The row's documents are no list of texts or of objects with a text: {problem}.") from None
    return [Document(text=one) if isinstance(one, str) else one for one in found if one]


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None and path.is_file() else None


def _parse(number: int, line: bytes) -> Document:
    try:
        return Document.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise DatasetError(f"Line {number} of the documents: {problem}.") from None
