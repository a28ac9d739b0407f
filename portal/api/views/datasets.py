"""Datasets, their versions and rows. Uploads in pieces are in ``dataset_uploads``."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.parsers import JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from portal.api import dataset_serializers, serializers
from portal.api.views.base import CONFLICT, ERRORS, ApiView, TenantListView, validated
from portal.base_models.selectors import find_base_model, list_base_models
from portal.datasets.download import file_response
from portal.datasets.formats import CSV, JSONL, PARQUET
from portal.datasets.lengths import prompt_histogram
from portal.datasets.models import Dataset, DatasetVersion
from portal.datasets.selectors import (
    get_dataset,
    get_dataset_version,
    list_dataset_versions,
    list_datasets,
    list_rows,
)
from portal.datasets.services import DatasetInvalid, RepeatsFound, archive_dataset, delete_dataset, restore_dataset
from portal.datasets.uploads import receive_version
from portal.errors import FieldError, InvalidInput
from portal.tenants.models import Scope

RAW_TYPES = {
    "application/jsonl": JSONL,
    "application/x-ndjson": JSONL,
    "text/csv": CSV,
    "text/tab-separated-values": CSV,
    "application/vnd.apache.parquet": PARQUET,
    "application/gzip": "",
    "application/octet-stream": "",
    "text/plain": "",
}
"""Media types of a body that is the file, and the format they say."""


@extend_schema_view(
    get=extend_schema(
        summary="Datasets",
        parameters=[OpenApiParameter("archived", bool, description="Only archived ones, instead of the others.")],
        responses={200: serializers.DatasetOutput, **ERRORS},
    )
)
class DatasetsView(TenantListView[Dataset]):
    write_scope = Scope.DATASETS_WRITE
    serializer_class = serializers.DatasetOutput
    parser_classes = [MultiPartParser]

    def select(self) -> QuerySet[Dataset]:
        archived = self.request.query_params.get("archived", "").lower() in {"1", "true"}
        return list_datasets(self.tenant).filter(archived_at__isnull=not archived)

    @extend_schema(
        summary="Upload a dataset version",
        description="As a form, or with the file as the body (JSON lines, CSV or Parquet, gzip allowed) and the other "
        "fields in the query. Where rows are refused the upload is kept for a day; the error's hint says its address.",
        parameters=[dataset_serializers.DatasetInput],
        request={
            "multipart/form-data": dataset_serializers.DatasetForm,
            **dict.fromkeys(RAW_TYPES, OpenApiTypes.BINARY),
        },
        responses={201: serializers.DatasetVersionOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        if media_type == "multipart/form-data":
            data = validated(dataset_serializers.DatasetForm(data=request.data))
            stream = data.pop("file")
            file_name, size = stream.name or "", stream.size
        elif media_type in RAW_TYPES:
            data = validated(dataset_serializers.DatasetInput(data=request.query_params))
            data["format"] = data["format"] or RAW_TYPES[media_type]
            stream, file_name, size = request._request, "", content_length(request)  # the request reads as a stream
        else:
            raise UnsupportedMediaType(media_type)
        options = dataset_serializers.to_options(data)
        try:
            version = receive_version(
                tenant=self.tenant,
                user=self.user,
                stream=stream,
                options=options,
                file_name=file_name,
                size_bytes=size,
                **data,
            )
        except (DatasetInvalid, RepeatsFound) as error:
            if error.upload_id is not None:
                address = reverse("api:dataset-upload", args=[error.upload_id])
                error.hint += f" Nothing is lost: try again with POST {address}finish/; all faults: {address}errors/."
            raise
        return Response(serializers.DatasetVersionOutput(version).data, status=201)


def content_length(request: Request) -> int | None:
    value = request.META.get("CONTENT_LENGTH") or ""
    return int(value) if value.isdigit() else None


class DatasetView(ApiView):
    write_scope = Scope.DATASETS_WRITE
    parser_classes = [JSONParser]

    @extend_schema(summary="One dataset", responses={200: serializers.DatasetOutput, **ERRORS})
    def get(self, request: Request, dataset_id: uuid.UUID) -> Response:
        return Response(serializers.DatasetOutput(get_dataset(self.tenant, dataset_id)).data)

    @extend_schema(
        summary="Archive or restore a dataset",
        request=dataset_serializers.DatasetChange,
        responses={200: serializers.DatasetOutput, **ERRORS},
    )
    def patch(self, request: Request, dataset_id: uuid.UUID) -> Response:
        get_dataset(self.tenant, dataset_id)
        data = validated(dataset_serializers.DatasetChange(data=request.data))
        change = archive_dataset if data["archived"] else restore_dataset
        return Response(
            serializers.DatasetOutput(change(tenant=self.tenant, user=self.user, dataset_id=dataset_id)).data
        )

    @extend_schema(summary="Delete a dataset no job has used", responses={204: None, **ERRORS, **CONFLICT})
    def delete(self, request: Request, dataset_id: uuid.UUID) -> Response:
        delete_dataset(tenant=self.tenant, user=self.user, dataset_id=dataset_id)
        return Response(status=204)


@extend_schema(summary="Versions of a dataset", responses={200: serializers.DatasetVersionOutput, **ERRORS})
class DatasetVersionsView(TenantListView[DatasetVersion]):
    serializer_class = serializers.DatasetVersionOutput

    def select(self) -> QuerySet[DatasetVersion]:
        dataset = get_dataset(self.tenant, self.kwargs["dataset_id"])
        return list_dataset_versions(self.tenant, dataset.pk)


class VersionApiView(ApiView):
    """A view of one version."""

    def get_version(self, dataset_id: uuid.UUID, version_id: uuid.UUID) -> DatasetVersion:
        version = get_dataset_version(self.tenant, version_id)
        if version.dataset_id != dataset_id:
            raise Http404("No such dataset version.")
        return version


class DatasetRowsView(VersionApiView):
    @extend_schema(
        summary="Rows of a dataset version",
        parameters=[dataset_serializers.RowsQuery],
        responses={200: dataset_serializers.RowsOutput, **ERRORS},
    )
    def get(self, request: Request, dataset_id: uuid.UUID, version_id: uuid.UUID) -> Response:
        version = self.get_version(dataset_id, version_id)
        query = validated(dataset_serializers.RowsQuery(data=request.query_params))
        return Response({"rows": list_rows(self.tenant, version.pk, **query)})


class DatasetFileView(VersionApiView):
    @extend_schema(
        summary="The stored file of a dataset version",
        responses={(200, "application/x-ndjson"): OpenApiTypes.BINARY, **ERRORS},
    )
    def get(self, request: Request, dataset_id: uuid.UUID, version_id: uuid.UUID) -> Any:
        return file_response(self.get_version(dataset_id, version_id))


class DatasetLengthsView(VersionApiView):
    @extend_schema(
        summary="Prompt lengths of a dataset version in a base model's tokens",
        parameters=[dataset_serializers.LengthsQuery],
        responses={200: dataset_serializers.LengthsOutput, **ERRORS},
    )
    def get(self, request: Request, dataset_id: uuid.UUID, version_id: uuid.UUID) -> Response:
        version = self.get_version(dataset_id, version_id)
        query = validated(dataset_serializers.LengthsQuery(data=request.query_params))
        wanted = query["base_model"]
        base_model = find_base_model(wanted) if wanted else list_base_models().first()
        if base_model is None:
            fields = [FieldError("base_model", "is not on offer")]
            raise InvalidInput("There is no such base model.", fields=fields)
        histogram = prompt_histogram(version, base_model)
        if histogram is None:
            raise Http404("The version's file is not there.")
        return Response(dataset_serializers.LengthsOutput(histogram).data)
