"""Pages of datasets. Uploads, from the first byte to the stored version, are in ``upload_views``."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.template.defaultfilters import filesizeformat
from django.views.decorators.http import require_POST

from portal.base_models.selectors import find_base_model, list_base_models
from portal.datasets.download import file_response
from portal.datasets.formats import FORMATS
from portal.datasets.lengths import prompt_histogram
from portal.datasets.models import DatasetVersion
from portal.datasets.selectors import (
    count_jobs_of_dataset,
    get_dataset,
    get_dataset_version,
    list_datasets,
    list_rows,
    list_uploads,
)
from portal.datasets.services import archive_dataset, delete_dataset, restore_dataset
from portal.errors import ServiceError
from portal.jobs.selectors import list_jobs
from portal.pages.http import TenantRequest, in_words, page_number, tenant_page, writer_page

PAGE_SIZE = 25
ROWS_PER_PAGE = 20
MINUS = "\u2212"
SHOWN_JOBS = 10
MAPPED = {
    "prompt": "Prompt from",
    "messages": "Messages from",
    "answer": "Answer from",
    "answer_after": "Answer after",
    "split": "Split from",
}


@tenant_page
def dataset_list(request: TenantRequest) -> HttpResponse:
    archived = "archived" in request.GET
    datasets = list_datasets(request.tenant).filter(archived_at__isnull=not archived)
    context = {
        "page": Paginator(datasets, PAGE_SIZE).get_page(page_number(request)),
        "archived": archived,
        "has_archived": archived or list_datasets(request.tenant).filter(archived_at__isnull=False).exists(),
        "uploads": [] if archived or not request.membership.can_write else list_uploads(request.tenant),
    }
    return render(request, "datasets/list.html", context)


@tenant_page
def dataset_detail(request: TenantRequest, dataset_id: uuid.UUID) -> HttpResponse:
    dataset = get_dataset(request.tenant, dataset_id)
    versions = list(dataset.versions.all())
    chosen = next((v for v in versions if str(v.number) == request.GET.get("version")), versions[0])
    before = next((v for v in versions if v.number < chosen.number), None)
    page = Paginator(range(chosen.rows), ROWS_PER_PAGE).get_page(page_number(request))
    start = (page.number - 1) * ROWS_PER_PAGE
    rows = list_rows(request.tenant, chosen.pk, start=start, limit=ROWS_PER_PAGE)
    context = {
        "dataset": dataset,
        "versions": versions,
        "version": chosen,
        "before": before,
        "changes": _changes(chosen, before),
        "facts": _facts(chosen),
        "page": page,
        "query": f"&version={chosen.number}",
        "rows": [{**row, "number": start + index} for index, row in enumerate(rows, start=1)],
        "base_models": list_base_models(),
        "jobs": list_jobs(request.tenant).filter(dataset_version__dataset=dataset)[:SHOWN_JOBS],
        "job_count": count_jobs_of_dataset(request.tenant, dataset.pk),
    }
    return render(request, "datasets/detail.html", context)


def _changes(version: DatasetVersion, before: DatasetVersion | None) -> list[tuple[str, str]]:
    """What differs in size from the version before, in words."""
    if before is None:
        return []
    return [
        ("training rows", _difference(version.train_rows - before.train_rows, "{:,}".format)),
        ("held-out rows", _difference(version.held_out_rows - before.held_out_rows, "{:,}".format)),
        ("size", _difference(version.size_bytes - before.size_bytes, filesizeformat)),
    ]


def _difference(value: int, words: Callable[[int], str]) -> str:
    """``75123`` -> ``+73.4 KB``; a minus sign as wide as the plus."""
    return f"{'+' if value > 0 else MINUS}{words(abs(value))}" if value else "the same"


def _facts(version: DatasetVersion) -> list[tuple[str, str]]:
    """How the version came about, in words; versions stored before this was recorded say less."""
    origin: dict[str, Any] = version.origin
    if not origin:
        return []
    facts = [("File", origin["file_name"]), ("Format", FORMATS[origin["format"]])]
    facts += [(label, (origin["mapping"] or {}).get(role, "")) for role, label in MAPPED.items()]
    if origin["held_out_file"]:
        facts.append(("Held out", "a file of its own"))
    elif version.held_out_rows:
        facts.append(("Seed of the split", str(origin["seed"])))
    for name, label, choice in (
        ("duplicate_rows", "Exact repeats", "duplicates"),
        ("overlapping_rows", "In both splits", "overlap"),
    ):
        done = "dropped" if origin[choice] == "drop" else "kept"
        facts.append((label, f"{origin[name]:,} {done}" if origin[name] else "none"))
    if origin["skipped_rows"]:
        facts.append(("Bad rows left out", f"{origin['skipped_rows']:,}"))
    return [(label, value) for label, value in facts if value]


def _version_of(request: TenantRequest, dataset_id: uuid.UUID, version_id: uuid.UUID) -> DatasetVersion:
    version = get_dataset_version(request.tenant, version_id)
    if version.dataset_id != dataset_id:
        raise Http404("No such dataset version.")
    return version


@tenant_page
def dataset_lengths(request: TenantRequest, dataset_id: uuid.UUID, version_id: uuid.UUID) -> HttpResponse:
    """The part of the page with prompt lengths; it takes a moment for a large file."""
    version = _version_of(request, dataset_id, version_id)
    base_model = find_base_model(request.GET.get("base_model", "")) or list_base_models().first()
    histogram = prompt_histogram(version, base_model) if base_model else None
    return render(request, "datasets/_lengths.html", {"histogram": histogram, "version": version})


@tenant_page
def dataset_rows(request: TenantRequest, dataset_id: uuid.UUID, version_id: uuid.UUID) -> HttpResponseBase:
    return file_response(_version_of(request, dataset_id, version_id))


@require_POST
@writer_page
def dataset_archive(request: TenantRequest, dataset_id: uuid.UUID) -> HttpResponse:
    dataset = archive_dataset(tenant=request.tenant, user=request.user, dataset_id=dataset_id)
    messages.success(request, f"{dataset.name} is archived.")
    return redirect("datasets:list")


@require_POST
@writer_page
def dataset_restore(request: TenantRequest, dataset_id: uuid.UUID) -> HttpResponse:
    dataset = restore_dataset(tenant=request.tenant, user=request.user, dataset_id=dataset_id)
    messages.success(request, f"{dataset.name} is back in the list.")
    return redirect("datasets:detail", dataset.pk)


@require_POST
@writer_page
def dataset_delete(request: TenantRequest, dataset_id: uuid.UUID) -> HttpResponse:
    dataset = get_dataset(request.tenant, dataset_id)
    try:
        delete_dataset(tenant=request.tenant, user=request.user, dataset_id=dataset_id)
    except ServiceError as error:
        messages.error(request, in_words(error))
        return redirect("datasets:detail", dataset_id)
    messages.success(request, f"{dataset.name} is deleted.")
    return redirect("datasets:list")
