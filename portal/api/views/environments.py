"""What environments need: documents for the search tool, tokens for remote servers."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.views.base import CONFLICT, ERRORS, ApiView, TenantListView, validated
from portal.environments.models import DocumentSet, EnvironmentToken
from portal.environments.selectors import (
    get_document_set,
    get_environment_token,
    list_document_sets,
    list_environment_tokens,
)
from portal.environments.services import (
    create_document_set,
    create_environment_token,
    delete_document_set,
    delete_environment_token,
    replace_environment_token,
)
from portal.tenants.models import Scope


class DocumentSetOutput(serializers.ModelSerializer[DocumentSet]):
    class Meta:
        model = DocumentSet
        fields = ["id", "name", "sha256", "documents", "size_bytes", "created_at"]


class DocumentSetUpload(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    file = serializers.FileField(
        allow_empty_file=True, help_text="JSON lines with text and title, or plain text: a document a paragraph."
    )


class EnvironmentTokenOutput(serializers.ModelSerializer[EnvironmentToken]):
    class Meta:
        model = EnvironmentToken
        fields = ["id", "name", "created_at", "changed_at"]


class EnvironmentTokenValue(serializers.Serializer[Any]):
    value = serializers.CharField(
        write_only=True, trim_whitespace=False, max_length=10_000, help_text="Never shown again."
    )


class EnvironmentTokenInput(EnvironmentTokenValue):
    name = serializers.CharField(max_length=64, help_text="Jobs name it as environment.token_name.")


@extend_schema_view(
    get=extend_schema(summary="Documents for the search tool", responses={200: DocumentSetOutput, **ERRORS})
)
class DocumentSetsView(TenantListView[DocumentSet]):
    write_scope = Scope.DATASETS_WRITE
    serializer_class = DocumentSetOutput
    parser_classes = [MultiPartParser]

    def select(self) -> QuerySet[DocumentSet]:
        return list_document_sets(self.tenant)

    @extend_schema(
        summary="Upload documents",
        description="A job's environment of type tools names them by their sha256, as documents_sha256.",
        request={"multipart/form-data": DocumentSetUpload},
        responses={201: DocumentSetOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        data = validated(DocumentSetUpload(data=request.data))
        made = create_document_set(tenant=self.tenant, user=self.user, name=data["name"], file=data["file"])
        return Response(DocumentSetOutput(made).data, status=201)


class DocumentSetView(ApiView):
    write_scope = Scope.DATASETS_WRITE

    @extend_schema(summary="One upload of documents", responses={200: DocumentSetOutput, **ERRORS})
    def get(self, request: Request, document_set_id: uuid.UUID) -> Response:
        return Response(DocumentSetOutput(get_document_set(self.tenant, document_set_id)).data)

    @extend_schema(
        summary="Delete documents",
        description="Refused while a job that has not ended uses them.",
        responses={204: None, **ERRORS, **CONFLICT},
    )
    def delete(self, request: Request, document_set_id: uuid.UUID) -> Response:
        delete_document_set(tenant=self.tenant, user=self.user, document_set_id=document_set_id)
        return Response(status=204)


@extend_schema_view(
    get=extend_schema(summary="Tokens for remote environments", responses={200: EnvironmentTokenOutput, **ERRORS})
)
class EnvironmentTokensView(TenantListView[EnvironmentToken]):
    write_scope = Scope.JOBS_WRITE
    serializer_class = EnvironmentTokenOutput

    def select(self) -> QuerySet[EnvironmentToken]:
        return list_environment_tokens(self.tenant)

    @extend_schema(
        summary="Store a token",
        description="The engine sends it to the job's remote environment as Authorization: Bearer.",
        request=EnvironmentTokenInput,
        responses={201: EnvironmentTokenOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        data = validated(EnvironmentTokenInput(data=request.data))
        token = create_environment_token(tenant=self.tenant, user=self.user, name=data["name"], value=data["value"])
        return Response(EnvironmentTokenOutput(token).data, status=201)


class EnvironmentTokenView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(summary="One token, without its value", responses={200: EnvironmentTokenOutput, **ERRORS})
    def get(self, request: Request, environment_token_id: uuid.UUID) -> Response:
        return Response(EnvironmentTokenOutput(get_environment_token(self.tenant, environment_token_id)).data)

    @extend_schema(
        summary="Replace a token's value",
        request=EnvironmentTokenValue,
        responses={200: EnvironmentTokenOutput, **ERRORS},
    )
    def put(self, request: Request, environment_token_id: uuid.UUID) -> Response:
        token = get_environment_token(self.tenant, environment_token_id)
        data = validated(EnvironmentTokenValue(data=request.data))
        token = replace_environment_token(
            tenant=self.tenant, user=self.user, environment_token_id=token.pk, value=data["value"]
        )
        return Response(EnvironmentTokenOutput(token).data)

    @extend_schema(
        summary="Delete a token",
        description="Refused while a job that has not ended uses it.",
        responses={204: None, **ERRORS, **CONFLICT},
    )
    def delete(self, request: Request, environment_token_id: uuid.UUID) -> Response:
        delete_environment_token(tenant=self.tenant, user=self.user, environment_token_id=environment_token_id)
        return Response(status=204)
