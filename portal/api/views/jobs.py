from __future__ import annotations

import uuid
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from portal.adapters.selectors import get_adapter_version
from portal.api import serializers
from portal.api.filters import JobsQuery
from portal.api.idempotency import read_key
from portal.api.views.base import CONFLICT, ERRORS, ApiView, TenantListView, validated
from portal.datasets.selectors import get_dataset_version
from portal.errors import InvalidInput
from portal.jobs.estimates import estimate_job
from portal.jobs.models import Job
from portal.jobs.selectors import get_job, list_jobs, read_news
from portal.jobs.services import cancel_job, create_job, extend_job, pause_job, resume_job, set_priority
from portal.rewards.selectors import get_reward_version
from portal.tenants.models import Scope, Tenant


@extend_schema_view(get=extend_schema(summary="Jobs", responses={200: serializers.JobOutput, **ERRORS}))
class JobsView(TenantListView[Job]):
    write_scope = Scope.JOBS_WRITE
    serializer_class = serializers.JobOutput
    query_serializer = JobsQuery
    idempotent_by_itself = True  # for as long as the job exists, and whatever becomes of this process

    def select(self) -> QuerySet[Job]:
        return list_jobs(self.tenant)

    @extend_schema(
        summary="Start a job",
        request=serializers.JobInput,
        responses={201: serializers.JobOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        data = validated(serializers.JobInput(data=request.data))
        key = read_key(request)
        job = create_job(tenant=self.tenant, user=self.user, idempotency_key=key, **_job_arguments(self.tenant, data))
        return Response(serializers.JobOutput(job).data, status=201)


def _job_arguments(tenant: Tenant, data: dict[str, Any]) -> dict[str, Any]:
    """What was asked for as arguments of the services; raises Http404 where the tenant has no such object."""
    dataset_version, start_from = data["dataset_version"], data["start_from"]
    return {
        "name": data["name"],
        "base_model_id": data["base_model"],
        "dataset_version": get_dataset_version(tenant, dataset_version) if dataset_version else None,
        "reward_version": get_reward_version(tenant, data["reward_version"]),
        "settings": data["settings"],
        "start_from": get_adapter_version(tenant, start_from) if start_from else None,
    }


class EstimateView(ApiView):
    write_scope = Scope.READ  # an estimate changes nothing

    @extend_schema(
        summary="Estimate a job before it starts",
        description="Takes what starts a job and says what it would take and what speaks against it. Starting a job "
        "does not repeat the checks of rewards and prompt lengths: ask here first.",
        request=serializers.EstimateInput,
        responses={200: serializers.EstimateOutput, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        data = validated(serializers.EstimateInput(data=request.data))
        estimate = estimate_job(tenant=self.tenant, **_job_arguments(self.tenant, data))
        return Response(serializers.EstimateOutput(estimate.as_json()).data)


class JobView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(summary="One job", responses={200: serializers.JobOutput, **ERRORS})
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        return Response(serializers.JobOutput(get_job(self.tenant, job_id)).data)

    @extend_schema(
        summary="Change a job's priority or number of steps",
        description="The engine goes by it from the next step on. With both, both or neither are changed.",
        request=serializers.JobChange,
        responses={202: serializers.JobOutput, **ERRORS, **CONFLICT},
    )
    def patch(self, request: Request, job_id: uuid.UUID) -> Response:
        job = get_job(self.tenant, job_id)
        data = validated(serializers.JobChange(data=request.data))
        if not data:
            raise InvalidInput("The job was not changed.", hint="Send priority, steps or both.")
        with transaction.atomic():
            if "priority" in data:
                job = set_priority(tenant=self.tenant, user=self.user, job_id=job_id, priority=data["priority"])
            if "steps" in data:
                job = extend_job(tenant=self.tenant, user=self.user, job_id=job_id, steps=data["steps"])
        return Response(serializers.JobOutput(job).data, status=202)


class PauseJobView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(
        summary="Pause a job",
        description="It gives up its place, keeps every committed step and no longer counts as an active job. One that "
        "a quota has paused then stays paused when the quota has room again.",
        request=None,
        responses={202: serializers.JobOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request, job_id: uuid.UUID) -> Response:
        job = pause_job(tenant=self.tenant, user=self.user, job_id=job_id)
        return Response(serializers.JobOutput(job).data, status=202)


class ResumeJobView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(
        summary="Resume a paused job",
        description="It goes on from its last committed step. It counts as an active job again.",
        request=None,
        responses={202: serializers.JobOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request, job_id: uuid.UUID) -> Response:
        job = resume_job(tenant=self.tenant, user=self.user, job_id=job_id)
        return Response(serializers.JobOutput(job).data, status=202)


class CancelJobView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(
        summary="Cancel a job",
        description="The engine then ends it; harmless where the job has ended.",
        request=None,
        responses={202: serializers.JobOutput, **ERRORS},
    )
    def post(self, request: Request, job_id: uuid.UUID) -> Response:
        job = cancel_job(tenant=self.tenant, user=self.user, job_id=job_id)
        return Response(serializers.JobOutput(job).data, status=202)


class JobEventsView(ApiView):
    @extend_schema(
        summary="Events of a job",
        description="In order, from after a seq on. Ask again with 'after' = 'last_seq' of the answer.",
        parameters=[serializers.EventsQuery],
        responses={200: serializers.EventsOutput, **ERRORS},
    )
    def get(self, request: Request, job_id: uuid.UUID) -> Response:
        query = validated(serializers.EventsQuery(data=request.query_params))
        types = [name.strip() for name in query["type"].split(",") if name.strip()]
        news = read_news(self.tenant, job_id, after=query["after"], limit=query["limit"], types=types or None)
        finished = news.job.is_finished and news.last_seq >= news.job.last_seq
        output = serializers.EventsOutput({"events": news.events, "last_seq": news.last_seq, "finished": finished})
        return Response(output.data)
