from __future__ import annotations

from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.filters import ListQuery
from portal.api.views.base import ERRORS, ApiView, TenantListView, validated
from portal.errors import FieldError, InvalidInput
from portal.usage import selectors
from portal.usage.export import stream_csv
from portal.usage.meters import get_quotas, list_meters
from portal.usage.models import UsageRecord
from portal.usage.periods import Period


class PeriodQuery(serializers.Serializer[Any]):
    month = serializers.CharField(required=False, help_text="Like 2026-11, in UTC. The current month by default.")


class TotalsOutput(serializers.Serializer[Any]):
    steps = serializers.IntegerField()
    evaluations = serializers.IntegerField()
    tokens_sampled = serializers.IntegerField(help_text="Evaluations included.")
    tokens_trained = serializers.IntegerField()
    accelerator_seconds = serializers.FloatField(help_text="Of trainer and rollout workers.")
    jobs = serializers.IntegerField(help_text="That spent anything.")


class DayOutput(TotalsOutput):
    day = serializers.DateField()


class MemberUsageOutput(TotalsOutput):
    member = serializers.CharField(source="member_name", allow_blank=True, help_text="Who made the jobs.")


class UsageOutput(serializers.Serializer[Any]):
    month = serializers.CharField()
    totals = TotalsOutput()
    days = DayOutput(many=True, help_text="Every day of the month.")
    members = MemberUsageOutput(many=True)


class UsageRecordOutput(serializers.ModelSerializer[UsageRecord]):
    class Meta:
        model = UsageRecord
        fields = [
            "day",
            "job_id",
            "job_name",
            "member_name",
            "steps",
            "evaluations",
            "tokens_sampled",
            "tokens_trained",
            "accelerator_seconds",
        ]


class MeterOutput(serializers.Serializer[Any]):
    kind = serializers.CharField()
    # Declared fields are taken off the class, so DRF's own attribute of this name stays.
    label = serializers.CharField()  # type: ignore[assignment]
    used = serializers.FloatField()
    limit = serializers.FloatField(allow_null=True, help_text="Null: not limited.")
    level = serializers.ChoiceField(["unlimited", "ok", "warning", "reached"], help_text="Warning from 80 % on.")
    resets_at = serializers.DateTimeField(allow_null=True, help_text="Null for what does not start anew.")


class LimitsOutput(serializers.Serializer[Any]):
    max_steps_per_job = serializers.IntegerField(allow_null=True)
    max_dataset_bytes = serializers.IntegerField()
    max_dataset_rows = serializers.IntegerField()
    max_api_requests_per_minute = serializers.IntegerField(allow_null=True)


class QuotasOutput(serializers.Serializer[Any]):
    meters = MeterOutput(many=True)
    limits = LimitsOutput(help_text="Of one job, one upload, one minute. Null: not limited.")


def month_of(request: Request) -> Period:
    """Raises InvalidInput."""
    text = validated(PeriodQuery(data=request.query_params)).get("month", "")
    period = Period.parse(text) if text else Period.of()
    if period is None:
        raise InvalidInput("There is no such month.", fields=[FieldError("month", "must be a month like 2026-11")])
    return period


class UsageView(ApiView):
    @extend_schema(summary="Usage of a month", parameters=[PeriodQuery], responses={200: UsageOutput, **ERRORS})
    def get(self, request: Request) -> Response:
        period = month_of(request)
        days = selectors.list_days(self.tenant, period)
        usage = {
            "month": str(period),
            "totals": selectors.get_totals(self.tenant, period, days),
            "days": [{"day": day, **vars(totals)} for day, totals in days.items()],
            "members": selectors.list_usage_by_member(self.tenant, period),
        }
        return Response(UsageOutput(usage).data)


@extend_schema_view(
    get=extend_schema(
        summary="Usage of a month by job and day",
        parameters=[PeriodQuery],
        responses={200: UsageRecordOutput, **ERRORS},
    )
)
class UsageRecordsView(TenantListView[UsageRecord]):
    serializer_class = UsageRecordOutput
    query_serializer = ListQuery
    ordering = ("day", "pk")

    def select(self) -> Any:
        return selectors.list_records(self.tenant, month_of(self.request))


class UsageExportView(ApiView):
    @extend_schema(
        summary="Usage of a month as CSV",
        description="One line for each job and day.",
        parameters=[PeriodQuery],
        responses={(200, "text/csv"): OpenApiTypes.STR, **ERRORS},
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        period = month_of(request)
        return StreamingHttpResponse(stream_csv(self.tenant, period), content_type="text/csv; charset=utf-8")


class QuotasView(ApiView):
    @extend_schema(summary="Quotas and what is used of them", responses={200: QuotasOutput, **ERRORS})
    def get(self, request: Request) -> Response:
        quotas = get_quotas(self.tenant)
        limits = {
            "max_steps_per_job": quotas.max_steps_per_job,
            "max_dataset_bytes": self.tenant.max_dataset_bytes,
            "max_dataset_rows": self.tenant.max_dataset_rows,
            "max_api_requests_per_minute": quotas.max_api_requests_per_minute,
        }
        return Response(QuotasOutput({"meters": list_meters(self.tenant), "limits": limits}).data)
