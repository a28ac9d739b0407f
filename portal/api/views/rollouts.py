from __future__ import annotations

import uuid

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import progress_serializers as serializers
from portal.api.views.base import ERRORS, ApiView, validated
from portal.jobs.selectors import get_job
from portal.rollouts.selectors import Filters, get_group, list_groups


class RolloutsView(ApiView):
    @extend_schema(
        operation_id="jobs_rollouts_list",
        summary="Rollouts of a job",
        description="Groups of episodes, newest first. Every page costs the same, however many there are.",
        parameters=[serializers.RolloutsQuery],
        responses={200: serializers.RolloutsOutput, **ERRORS},
    )
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        job = get_job(self.tenant, job_id)
        query = validated(serializers.RolloutsQuery(data=request.query_params))
        filters = Filters(
            step=query["step"],
            min_reward=query["min_reward"],
            max_reward=query["max_reward"],
            errors=query["failed"],
            text=query["text"],
            prompt=query["prompt"],
        )
        page = list_groups(job, filters, before=query["before"], limit=query["limit"])
        return Response(serializers.RolloutsOutput(page).data)


class RolloutGroupView(ApiView):
    @extend_schema(
        summary="One group of episodes",
        responses={200: serializers.RolloutGroupOutput, **ERRORS},
    )
    def get(self, request: Request, job_id: uuid.UUID, seq: int) -> Response:
        job = get_job(self.tenant, job_id)
        if seq > serializers.LARGEST:  # no database compares with it
            raise Http404("No such group.")
        return Response(serializers.RolloutGroupOutput(get_group(job, seq)).data)
