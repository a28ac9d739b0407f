"""What of datasets leaves as a file: a version's rows, the faults of an upload."""

from __future__ import annotations

from django.http import FileResponse, HttpResponse, HttpResponseBase

from portal.datasets.models import DatasetUpload, DatasetVersion


def file_response(version: DatasetVersion) -> FileResponse:
    """The rows of a version, byte for byte what its sha256 is of."""
    name = f"{version.dataset.name}-v{version.number}.jsonl"
    return FileResponse(version.path.open("rb"), as_attachment=True, filename=name, content_type="application/x-ndjson")


def errors_response(upload: DatasetUpload) -> HttpResponseBase:
    """All faults the last check of an upload found, as CSV."""
    name = f"{upload.name}-faults.csv"
    if not upload.errors_path.exists():
        return HttpResponse("file,line,field,problem,value\r\n", content_type="text/csv; charset=utf-8")
    return FileResponse(
        upload.errors_path.open("rb"), as_attachment=True, filename=name, content_type="text/csv; charset=utf-8"
    )
