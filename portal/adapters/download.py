"""The signed download: whoever holds an unexpired link may fetch the adapter, signed in or not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import IO

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from portal.adapters.bundle import CHUNK_BYTES, AdapterUnavailable, build_bundle
from portal.adapters.services import open_download_link, record_download

PLAIN = "text/plain; charset=utf-8"


@require_safe
@login_not_required
def download_adapter(request: HttpRequest, token: str) -> HttpResponseBase:
    found = open_download_link(token=token)
    if found is None:
        message = "This download link is wrong or has expired. Get a new one from the job's page or the API.\n"
        return HttpResponseForbidden(message, content_type=PLAIN)
    adapter, user = found
    try:
        archive = build_bundle(adapter=adapter)
    except AdapterUnavailable as error:
        return HttpResponse(f"{error.message} {error.hint}\n", content_type=PLAIN, status=error.status)
    if request.method == "GET":
        record_download(adapter=adapter, user=user)
    response = StreamingHttpResponse(_stream(archive), content_type="application/zip")
    response["Content-Length"] = os.fstat(archive.fileno()).st_size
    filename = f"job-{adapter.job_id.hex[:8]}-v{adapter.version}.zip"
    response["Content-Disposition"] = content_disposition_header(True, filename) or ""
    response["Cache-Control"] = "private, no-store"
    return response


async def _stream(archive: IO[bytes]) -> AsyncIterator[bytes]:
    """Chunks read in a thread: ASGI would first read all of a synchronous iterator into memory."""
    with archive:
        while chunk := await sync_to_async(archive.read, thread_sensitive=False)(CHUNK_BYTES):
            yield chunk
