from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import serializers
from portal.api.views.base import CONFLICT, ERRORS, ApiView
from portal.pages.sample import create_sample_project
from portal.tenants.models import Scope


class SampleProjectView(ApiView):
    write_scope = (Scope.DATASETS_WRITE, Scope.REWARDS_WRITE, Scope.JOBS_WRITE)  # it makes one of each

    @extend_schema(
        summary="Start the sample project",
        description="A small dataset, a reward and a job on them. Again: another job on the same two.",
        request=None,
        responses={201: serializers.JobOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        project = create_sample_project(tenant=self.tenant, user=self.user)
        return Response(serializers.JobOutput(project.job).data, status=201)
