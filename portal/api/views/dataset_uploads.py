"""Uploads in pieces: begin, send pieces at their offset, look, finish. A cut costs the piece that was under way."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import dataset_serializers, serializers
from portal.api.dataset_serializers import UploadOutput
from portal.api.parsers import LimitedJSONParser
from portal.api.views.base import CONFLICT, ERRORS, ApiView, TenantListView, validated
from portal.api.views.datasets import content_length
from portal.datasets.download import errors_response
from portal.datasets.mapping import read_mapping
from portal.datasets.models import DatasetUpload
from portal.datasets.preview import preview_upload
from portal.datasets.receiving import file_size, too_large
from portal.datasets.selectors import get_upload, list_uploads
from portal.datasets.uploads import (
    append_to_upload,
    complete_upload,
    create_upload,
    delete_upload,
    finish_upload,
)
from portal.tenants.models import Scope

BODY_PARSERS = [LimitedJSONParser, FormParser, MultiPartParser]


@extend_schema_view(
    get=extend_schema(summary="Unfinished dataset uploads", responses={200: UploadOutput(many=True), **ERRORS})
)
class DatasetUploadsView(TenantListView[DatasetUpload]):
    write_scope = Scope.DATASETS_WRITE
    serializer_class = UploadOutput

    def select(self) -> QuerySet[DatasetUpload]:
        return list_uploads(self.tenant)

    @extend_schema(
        summary="Begin an upload in pieces",
        description="Then PUT the pieces to data/, and POST finish/. An upload is kept for a day.",
        request=dataset_serializers.UploadInput,
        responses={201: UploadOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        data = validated(dataset_serializers.UploadInput(data=request.data))
        return Response(UploadOutput(create_upload(tenant=self.tenant, user=self.user, **data)).data, status=201)


class DatasetUploadView(ApiView):
    write_scope = Scope.DATASETS_WRITE

    @extend_schema(summary="One upload", responses={200: UploadOutput, **ERRORS})
    def get(self, request: Request, upload_id: uuid.UUID) -> Response:
        return Response(UploadOutput(get_upload(self.tenant, upload_id)).data)

    @extend_schema(summary="Forget an upload", responses={204: None, **ERRORS})
    def delete(self, request: Request, upload_id: uuid.UUID) -> Response:
        delete_upload(tenant=self.tenant, user=self.user, upload_id=upload_id)
        return Response(status=204)


class DatasetUploadDataView(ApiView):
    write_scope = Scope.DATASETS_WRITE

    @extend_schema(summary="Where to go on with an upload", responses={200: dataset_serializers.OffsetOutput, **ERRORS})
    def get(self, request: Request, upload_id: uuid.UUID) -> Response:
        return self._offsets(upload_id)

    @extend_schema(
        summary="Send a piece of an upload",
        description="The body is the piece. At another offset than what has been received: 409, which says it.",
        parameters=[dataset_serializers.PieceQuery],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={200: dataset_serializers.OffsetOutput, **ERRORS, **CONFLICT},
    )
    def put(self, request: Request, upload_id: uuid.UUID) -> Response:
        get_upload(self.tenant, upload_id)
        query = validated(dataset_serializers.PieceQuery(data=request.query_params))
        if query["offset"] + (content_length(request) or 0) > self.tenant.max_dataset_bytes:
            raise too_large(self.tenant.max_dataset_bytes)
        append_to_upload(
            tenant=self.tenant,
            user=self.user,
            upload_id=upload_id,
            stream=request._request,
            length=content_length(request),
            **query,
        )
        return self._offsets(upload_id)

    def _offsets(self, upload_id: uuid.UUID) -> Response:
        upload = get_upload(self.tenant, upload_id)
        return Response({"offset": file_size(upload.data_path), "held_out_offset": file_size(upload.held_out_path)})


class DatasetUploadPreviewView(ApiView):
    write_scope = Scope.DATASETS_WRITE
    parser_classes = BODY_PARSERS

    @extend_schema(
        summary="Columns and first rows of an upload",
        description="Under the given mapping, or the guessed one. Says that all pieces have come.",
        request=dataset_serializers.PreviewInput,
        responses={200: dataset_serializers.PreviewOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request, upload_id: uuid.UUID) -> Response:
        get_upload(self.tenant, upload_id)
        data = validated(dataset_serializers.PreviewInput(data=request.data))
        mapping = None if data["mapping"] is None else read_mapping(data["mapping"])
        upload = complete_upload(tenant=self.tenant, user=self.user, upload_id=upload_id)
        preview = preview_upload(upload, mapping, limit=data["limit"])
        shown: dict[str, Any] = {
            "columns": [{"name": column.name, "example": column.example} for column in preview.columns],
            "mapping": preview.mapping.model_dump() if preview.mapping else None,
            "rows": [
                {"line": row.line, "row": row.row, "faults": [str(fault) for fault in row.faults]}
                for row in preview.rows
            ],
            "problem": preview.problem,
        }
        return Response(shown)


class DatasetUploadFinishView(ApiView):
    write_scope = Scope.DATASETS_WRITE
    parser_classes = BODY_PARSERS

    @extend_schema(
        summary="Check an upload and store it as a dataset version",
        description="Where rows are refused, correct the mapping or skip the bad rows, and post again. Posting again "
        "after it is stored gives the same version.",
        request=dataset_serializers.BuildInput,
        responses={201: serializers.DatasetVersionOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request, upload_id: uuid.UUID) -> Response:
        get_upload(self.tenant, upload_id)
        data = validated(dataset_serializers.BuildInput(data=request.data))
        options = dataset_serializers.to_options(data)
        version = finish_upload(tenant=self.tenant, user=self.user, upload_id=upload_id, options=options)
        return Response(serializers.DatasetVersionOutput(version).data, status=201)


class DatasetUploadErrorsView(ApiView):
    write_scope = Scope.DATASETS_WRITE

    @extend_schema(
        summary="All faults the last check found, as CSV",
        responses={(200, "text/csv"): OpenApiTypes.BINARY, **ERRORS},
    )
    def get(self, request: Request, upload_id: uuid.UUID) -> Any:
        return errors_response(get_upload(self.tenant, upload_id))
