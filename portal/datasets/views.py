"""Pages of datasets."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from portal.datasets.forms import EXAMPLE, UploadForm
from portal.datasets.selectors import get_dataset, get_dataset_version, list_datasets, preview_rows
from portal.datasets.services import DatasetInvalid, create_dataset_version
from portal.errors import ServiceError
from portal.jobs.selectors import list_jobs
from portal.pages.http import TenantRequest, add_service_errors, page_number, tenant_page, writer_page

PAGE_SIZE = 25
PREVIEW_ROWS = 20
SHOWN_JOBS = 10


@tenant_page
def dataset_list(request: TenantRequest) -> HttpResponse:
    page = Paginator(list_datasets(request.tenant), PAGE_SIZE).get_page(page_number(request))
    return render(request, "datasets/list.html", {"page": page})


@writer_page
def dataset_new(request: TenantRequest) -> HttpResponse:
    if request.method != "POST":
        return _show(request, UploadForm(initial={"name": request.GET.get("name", "")}))
    form = UploadForm(request.POST, request.FILES)
    if not form.is_valid():
        return _show(request, form)
    try:
        version = create_dataset_version(
            tenant=request.tenant,
            user=request.user,
            name=form.cleaned_data["name"],
            file=form.stream(),
            held_out_fraction=form.cleaned_data["held_out_percent"] / 100,
        )
    except DatasetInvalid as error:
        return _show(request, form.for_correction(), invalid=error)
    except ServiceError as error:
        add_service_errors(form, error, {"held_out_fraction": "held_out_percent"})
        return _show(request, form)
    messages.success(request, f"{version} is stored: {version.rows} rows, {version.held_out_rows} of them held out.")
    return redirect(f"{reverse('datasets:detail', args=[version.dataset_id])}?version={version.number}")


def _show(request: HttpRequest, form: UploadForm, invalid: DatasetInvalid | None = None) -> HttpResponse:
    context = {"form": form, "invalid": invalid, "example": EXAMPLE}
    return render(request, "datasets/new.html", context, status=400 if invalid or form.errors else 200)


@tenant_page
def dataset_detail(request: TenantRequest, dataset_id: uuid.UUID) -> HttpResponse:
    dataset = get_dataset(request.tenant, dataset_id)
    versions = list(dataset.versions.all())
    chosen = next((v for v in versions if str(v.number) == request.GET.get("version")), versions[0])
    context = {
        "dataset": dataset,
        "versions": versions,
        "version": get_dataset_version(request.tenant, chosen.pk),
        "rows": preview_rows(request.tenant, chosen.pk, limit=PREVIEW_ROWS),
        "jobs": list_jobs(request.tenant).filter(dataset_version__dataset=dataset)[:SHOWN_JOBS],
    }
    return render(request, "datasets/detail.html", context)
