from __future__ import annotations

import uuid
from typing import BinaryIO, cast

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import serializers
from portal.api.views.base import ERRORS, ApiView, TenantListView, validated
from portal.datasets.models import Dataset, DatasetVersion
from portal.datasets.selectors import get_dataset, list_dataset_versions, list_datasets
from portal.datasets.services import create_dataset_version
from portal.tenants.models import Scope

RAW_TYPES = {"application/jsonl", "application/x-ndjson", "application/octet-stream", "text/plain"}


@extend_schema_view(get=extend_schema(summary="Datasets", responses={200: serializers.DatasetOutput, **ERRORS}))
class DatasetsView(TenantListView[Dataset]):
    write_scope = Scope.DATASETS_WRITE
    serializer_class = serializers.DatasetOutput
    parser_classes = [MultiPartParser]

    def select(self) -> QuerySet[Dataset]:
        return list_datasets(self.tenant)

    @extend_schema(
        summary="Upload a dataset version",
        description="As a form, or with the JSON lines as the body and the other fields in the query.",
        parameters=[serializers.DatasetInput],
        request={"multipart/form-data": serializers.DatasetUpload, "application/jsonl": OpenApiTypes.BINARY},
        responses={201: serializers.DatasetVersionOutput, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        if media_type == "multipart/form-data":
            data = validated(serializers.DatasetUpload(data=request.data))
            file = data.pop("file")
        elif media_type in RAW_TYPES:
            data = validated(serializers.DatasetInput(data=request.query_params))
            file = cast(BinaryIO, request._request)  # reads as a stream
        else:
            raise UnsupportedMediaType(media_type)
        version = create_dataset_version(tenant=self.tenant, user=self.user, file=file, **data)
        return Response(serializers.DatasetVersionOutput(version).data, status=201)


class DatasetView(ApiView):
    @extend_schema(summary="One dataset", responses={200: serializers.DatasetOutput, **ERRORS})
    def get(self, request: Request, dataset_id: uuid.UUID) -> Response:
        return Response(serializers.DatasetOutput(get_dataset(self.tenant, dataset_id)).data)


@extend_schema(summary="Versions of a dataset", responses={200: serializers.DatasetVersionOutput, **ERRORS})
class DatasetVersionsView(TenantListView[DatasetVersion]):
    serializer_class = serializers.DatasetVersionOutput

    def select(self) -> QuerySet[DatasetVersion]:
        dataset = get_dataset(self.tenant, self.kwargs["dataset_id"])
        return list_dataset_versions(self.tenant, dataset.pk)
