from __future__ import annotations

import uuid

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import progress_serializers as serializers
from portal.api.views.base import ERRORS, ApiView, validated
from portal.jobs.history import time_left
from portal.jobs.selectors import get_job
from portal.progress import selectors as progress


class JobMetricsView(ApiView):
    @extend_schema(
        summary="Metrics of a job",
        description="Its steps, its held-out evaluations, what it spent and how long it may still take.",
        parameters=[serializers.MetricsQuery],
        responses={200: serializers.MetricsOutput, **ERRORS},
    )
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        job = get_job(self.tenant, job_id)
        query = validated(serializers.MetricsQuery(data=request.query_params))
        output = serializers.MetricsOutput(
            {
                "steps": progress.step_points(job, after=query["after"], max_points=query["max_points"]),
                "evaluations": progress.evaluations(job),
                "best_version": progress.best_version(job),
                "spend": progress.spend(job),
                "time_left": time_left(job),
            }
        )
        return Response(output.data)
