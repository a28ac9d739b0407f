"""What of datasets leaves as a file: a version's rows, the faults of an upload. Read in pieces while it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import IO

from asgiref.sync import sync_to_async
from django.http import Http404, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.http import content_disposition_header

from portal.datasets.models import DatasetUpload, DatasetVersion
from portal.datasets.receiving import CHUNK_BYTES, file_size

NO_FAULTS = "file,line,field,problem,value\r\n"


def file_response(version: DatasetVersion) -> HttpResponseBase:
    """The rows of a version, byte for byte what its sha256 is of. Raises Http404 where the file is gone."""
    try:
        file = version.path.open("rb")
    except FileNotFoundError:
        raise Http404("The version's file is not there.") from None
    name = f"{version.dataset.name}-v{version.number}.jsonl"
    return _attach(file, name, "application/x-ndjson", version.size_bytes)


def errors_response(upload: DatasetUpload) -> HttpResponseBase:
    """All faults the last check of an upload found, as CSV."""
    if not upload.errors_path.exists():
        return HttpResponse(NO_FAULTS, content_type="text/csv; charset=utf-8")
    file = upload.errors_path.open("rb")
    return _attach(file, f"{upload.name}-faults.csv", "text/csv; charset=utf-8", file_size(upload.errors_path))


def _attach(file: IO[bytes], name: str, content_type: str, size_bytes: int) -> StreamingHttpResponse:
    name = "".join(character if character.isprintable() else "_" for character in name)
    disposition = content_disposition_header(as_attachment=True, filename=name) or "attachment"
    headers = {"Content-Disposition": disposition, "Content-Length": str(size_bytes)}
    return StreamingHttpResponse(_stream(file), content_type=content_type, headers=headers)


async def _stream(file: IO[bytes]) -> AsyncIterator[bytes]:
    """Of threads of its own, so that a slow reader holds up nobody."""
    with file:
        while chunk := await sync_to_async(file.read, thread_sensitive=False)(CHUNK_BYTES):
            yield chunk
