"""Pages of an upload: send it, say what its columns are, have it checked, store it."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.core.cache import cache
from django.http import HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from portal.datasets.building import HELD_OUT_FILE
from portal.datasets.download import errors_response
from portal.datasets.formats import FORMATS, PARQUET
from portal.datasets.forms import ENDINGS, EXAMPLE, MAX_PASTED, StoreForm, UploadForm, initial_choices
from portal.datasets.models import DatasetUpload
from portal.datasets.parsing import DatasetInvalid
from portal.datasets.preview import preview_upload
from portal.datasets.receiving import file_size
from portal.datasets.selectors import get_upload, progress_key
from portal.datasets.services import RepeatsFound
from portal.datasets.uploads import (
    append_to_upload,
    complete_upload,
    create_upload,
    delete_upload,
    finish_upload,
    replace_upload_text,
)
from portal.errors import ServiceError
from portal.pages.http import TenantRequest, add_service_errors, in_words, writer_page

PREVIEW_ROWS = 5
MAX_FIXABLE = 200_000
"""Bytes of a text that is opened on the page, to be corrected there."""


def _by_script(request: TenantRequest) -> bool:
    """Sent by the page's own script, which shows the progress and then goes where the answer says."""
    return request.headers.get("X-Requested-With") == "XMLHttpRequest"


def _go(request: TenantRequest, address: str) -> HttpResponse:
    return JsonResponse({"location": address}) if _by_script(request) else redirect(address)


# --- sending ---------------------------------------------------------------------------------------------------------


@writer_page
def dataset_new(request: TenantRequest) -> HttpResponse:
    if request.method != "POST":
        return _show_new(request, UploadForm(initial={"name": request.GET.get("name", "")}))
    form = UploadForm(request.POST, request.FILES)
    if not form.is_valid():
        return _show_new(request, form)
    try:
        upload = _receive(request, form)
    except DatasetInvalid as error:
        form.add_error("text" if form.cleaned_data["source"] == "paste" else "file", error.errors[0].message)
        return _show_new(request, form)
    except ServiceError as error:
        add_service_errors(form, error)
        return _show_new(request, form)
    return _go(request, reverse("datasets:upload", args=[upload.pk]))


def _receive(request: TenantRequest, form: UploadForm) -> DatasetUpload:
    stream, file_name, size = form.stream()
    upload = create_upload(
        tenant=request.tenant,
        user=request.user,
        name=form.cleaned_data["name"],
        file_name=file_name,
        size_bytes=size,
    )
    parts = {"data": stream, "held_out": form.cleaned_data["held_out_file"]}
    try:
        for part, content in parts.items():
            if content is not None:
                append_to_upload(
                    tenant=request.tenant,
                    user=request.user,
                    upload_id=upload.pk,
                    stream=content,
                    offset=0,
                    part=part,
                    length=content.size if part == "held_out" else size,
                )
        return complete_upload(tenant=request.tenant, user=request.user, upload_id=upload.pk)
    except ServiceError:
        delete_upload(tenant=request.tenant, user=request.user, upload_id=upload.pk)
        raise


def _show_new(request: TenantRequest, form: UploadForm) -> HttpResponse:
    if _by_script(request):
        return JsonResponse({"errors": form.errors}, status=400)
    context = {"form": form, "example": EXAMPLE, "endings": ENDINGS}
    return render(request, "datasets/new.html", context, status=400 if form.errors else 200)


# --- mapping, checking, storing --------------------------------------------------------------------------------------


@writer_page
def dataset_upload(request: TenantRequest, upload_id: uuid.UUID) -> HttpResponse:
    upload = get_upload(request.tenant, upload_id)
    if upload.version is not None:
        return _go(request, _address_of(upload))
    if request.method != "POST":
        return _show_upload(request, upload)
    if not upload.complete:
        try:
            upload = complete_upload(tenant=request.tenant, user=request.user, upload_id=upload_id)
        except DatasetInvalid as error:
            messages.error(request, error.errors[0].message)
        return _go(request, reverse("datasets:upload", args=[upload.pk]))
    form = StoreForm(request.POST, columns=preview_upload(upload).columns)
    if not form.is_valid():
        return _show_upload(request, upload, form)
    try:
        version = finish_upload(
            tenant=request.tenant, user=request.user, upload_id=upload_id, options=form.to_options()
        )
    except (DatasetInvalid, RepeatsFound):
        upload.refresh_from_db()  # its report says what was found
        return _show_upload(request, upload, form, refused=True)
    except ServiceError as error:
        add_service_errors(form, error, {"held_out_fraction": "held_out_percent"})
        return _show_upload(request, upload, form)
    messages.success(request, f"{version} is stored: {version.rows} rows, {version.held_out_rows} of them held out.")
    upload.version = version
    return _go(request, _address_of(upload))


def _address_of(upload: DatasetUpload) -> str:
    assert upload.version is not None
    return f"{reverse('datasets:detail', args=[upload.version.dataset_id])}?version={upload.version.number}"


def _show_upload(
    request: TenantRequest, upload: DatasetUpload, form: StoreForm | None = None, *, refused: bool = False
) -> HttpResponse:
    context = {
        "upload": upload,
        "size_bytes": file_size(upload.data_path),
        "held_out_bytes": file_size(upload.held_out_path),
        "held_out_file": HELD_OUT_FILE,
        "report": upload.report,
    }
    if upload.complete:
        preview = preview_upload(upload, limit=PREVIEW_ROWS)
        bound = form is not None
        form = form or StoreForm(columns=preview.columns, initial=initial_choices(preview))
        if bound and form.cleaned_data.get("prompt"):
            preview = preview_upload(upload, form.mapping(), limit=PREVIEW_ROWS)
        context |= {
            "form": form,
            "preview": preview,
            "format": FORMATS[upload.format],
            "text": _text_to_correct(upload),
        }
    faulty = refused or (form is not None and bool(form.errors))
    return render(request, "datasets/upload.html", context, status=400 if faulty else 200)


def _text_to_correct(upload: DatasetUpload) -> str | None:
    """What was sent, where it is a text small enough to be corrected on the page."""
    if upload.format == PARQUET or file_size(upload.data_path) > MAX_FIXABLE:
        return None
    try:
        return upload.data_path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return None


@writer_page
def upload_preview(request: TenantRequest, upload_id: uuid.UUID) -> HttpResponse:
    """The first rows as the form's present choices would store them."""
    upload = get_upload(request.tenant, upload_id)
    if not upload.complete:
        return render(request, "datasets/_upload_preview.html", {"preview": None})
    preview = preview_upload(upload, limit=PREVIEW_ROWS)
    form = StoreForm(request.GET, columns=preview.columns)
    form.is_valid()
    if form.cleaned_data.get("prompt"):
        preview = preview_upload(upload, form.mapping(), limit=PREVIEW_ROWS)
    return render(request, "datasets/_upload_preview.html", {"preview": preview})


@writer_page
def upload_progress(request: TenantRequest, upload_id: uuid.UUID) -> HttpResponse:
    """How far the check under way is, from 0 to 1."""
    upload = get_upload(request.tenant, upload_id)
    return JsonResponse({"fraction": cache.get(progress_key(upload.pk), 0.0)})


@writer_page
def upload_errors(request: TenantRequest, upload_id: uuid.UUID) -> HttpResponseBase:
    return errors_response(get_upload(request.tenant, upload_id))


@require_POST
@writer_page
def upload_text(request: TenantRequest, upload_id: uuid.UUID) -> HttpResponse:
    """Take the corrected rows."""
    get_upload(request.tenant, upload_id)
    text = request.POST.get("text", "")
    if not text.strip() or len(text) > MAX_PASTED:
        messages.error(request, f"The rows were not changed: send some text, at most {MAX_PASTED:,} characters.")
        return redirect("datasets:upload", upload_id)
    try:
        replace_upload_text(tenant=request.tenant, user=request.user, upload_id=upload_id, text=text)
    except ServiceError as error:
        messages.error(request, in_words(error))
    return redirect("datasets:upload", upload_id)


@require_POST
@writer_page
def upload_delete(request: TenantRequest, upload_id: uuid.UUID) -> HttpResponse:
    delete_upload(tenant=request.tenant, user=request.user, upload_id=upload_id)
    messages.success(request, "The upload is deleted.")
    return redirect("datasets:list")
