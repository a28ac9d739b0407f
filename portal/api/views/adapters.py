from __future__ import annotations

import uuid
from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal.adapters.models import AdapterVersion
from portal.adapters.selectors import get_adapter_version, list_adapter_versions
from portal.adapters.services import create_download_link
from portal.api import serializers
from portal.api.views.base import CONFLICT, ERRORS, ApiView, TenantListView
from portal.jobs.selectors import get_job
from portal.progress.selectors import version_metrics
from portal.tenants.models import Scope


@extend_schema(summary="Adapter versions of a job", responses={200: serializers.AdapterOutput, **ERRORS})
class JobAdaptersView(TenantListView[AdapterVersion]):
    serializer_class = serializers.AdapterOutput

    def select(self) -> QuerySet[AdapterVersion]:
        job = get_job(self.tenant, self.kwargs["job_id"])
        return list_adapter_versions(self.tenant, job.pk)


class AdapterView(ApiView):
    @extend_schema(summary="One adapter version", responses={200: serializers.AdapterOutput, **ERRORS})
    def get(self, request: Request, adapter_id: uuid.UUID) -> Response:
        adapter = get_adapter_version(self.tenant, adapter_id)
        output = serializers.AdapterOutput(adapter, context={"version_metrics": version_metrics([adapter])})
        return Response(output.data)


class AdapterLinkView(ApiView):
    write_scope = Scope.ADAPTERS_READ  # a link hands out the weights

    @extend_schema(
        summary="Link to download an adapter version",
        description="A zip with the weights, the PEFT config and a model card. Whoever has the link can use it.",
        request=None,
        responses={200: serializers.LinkOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request, adapter_id: uuid.UUID) -> Response:
        link = create_download_link(adapter=get_adapter_version(self.tenant, adapter_id), user=self.user)
        expires_at = timezone.now() + timedelta(seconds=settings.DOWNLOAD_LINK_SECONDS)
        output = serializers.LinkOutput({"url": request.build_absolute_uri(link), "expires_at": expires_at})
        return Response(output.data)
