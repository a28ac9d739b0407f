from __future__ import annotations

import json
import uuid
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.views.base import CONFLICT, ERRORS, ApiView, TenantListView, validated
from portal.tenants.models import Scope
from portal.webhooks import selectors, services
from portal.webhooks.mails import get_preference
from portal.webhooks.models import Attempt, Delivery, Endpoint, EventType, JobScope, NotificationPreference


class EndpointOutput(serializers.ModelSerializer[Endpoint]):
    events = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Endpoint
        fields = [
            "id",
            "url",
            "description",
            "events",
            "enabled",
            "disabled_reason",
            "failing_since",
            "old_secret_until",
            "created_at",
        ]


class NewEndpointOutput(EndpointOutput):
    secret = serializers.CharField(help_text="Shown this once.")

    class Meta(EndpointOutput.Meta):
        fields = [*EndpointOutput.Meta.fields, "secret"]


class EndpointInput(serializers.Serializer[Any]):
    url = serializers.CharField(max_length=2000)
    events = serializers.ListField(child=serializers.ChoiceField(EventType.choices), help_text="Which to tell of.")
    description = serializers.CharField(max_length=200, default="", allow_blank=True)


class EndpointChange(serializers.Serializer[Any]):
    url = serializers.CharField(max_length=2000, required=False)
    events = serializers.ListField(child=serializers.ChoiceField(EventType.choices), required=False)
    description = serializers.CharField(max_length=200, required=False, allow_blank=True)
    enabled = serializers.BooleanField(required=False)


class AttemptOutput(serializers.ModelSerializer[Attempt]):
    class Meta:
        model = Attempt
        fields = ["at", "duration_ms", "status_code", "excerpt", "error"]


class DeliveryOutput(serializers.ModelSerializer[Delivery]):
    message_id = serializers.CharField(help_text="The webhook-id header, the same in every attempt.")
    status_code = serializers.IntegerField(allow_null=True, help_text="Of the latest attempt.")
    error = serializers.CharField(allow_null=True, help_text="Of the latest attempt; empty where it arrived.")

    class Meta:
        model = Delivery
        fields = [
            "id",
            "message_id",
            "event_type",
            "state",
            "tries",
            "status_code",
            "error",
            "created_at",
            "next_attempt_at",
            "finished_at",
        ]


class DeliveryDetailOutput(DeliveryOutput):
    body = serializers.SerializerMethodField()
    attempts = AttemptOutput(many=True)

    class Meta(DeliveryOutput.Meta):
        fields = [*DeliveryOutput.Meta.fields, "body", "attempts"]

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_body(self, delivery: Delivery) -> Any:
        return json.loads(delivery.body)


class PreferenceOutput(serializers.ModelSerializer[NotificationPreference]):
    class Meta:
        model = NotificationPreference
        fields = ["jobs", "on_success", "on_failure", "on_quota"]


class PreferenceInput(serializers.Serializer[Any]):
    jobs = serializers.ChoiceField(JobScope.choices, help_text="Of which jobs success and failure are told.")
    on_success = serializers.BooleanField()
    on_failure = serializers.BooleanField()
    on_quota = serializers.BooleanField(help_text="At 80 % and at 100 % of a quota.")


@extend_schema_view(get=extend_schema(summary="Webhook endpoints", responses={200: EndpointOutput, **ERRORS}))
class EndpointsView(TenantListView[Endpoint]):
    write_scope = Scope.JOBS_WRITE
    serializer_class = EndpointOutput
    answers_secret = True

    def select(self) -> QuerySet[Endpoint]:
        return selectors.list_endpoints(self.tenant)

    @extend_schema(
        summary="Add a webhook endpoint",
        description="Messages are signed by the Standard Webhooks scheme with the secret in the answer.",
        request=EndpointInput,
        responses={201: NewEndpointOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        data = validated(EndpointInput(data=request.data))
        endpoint, secret = services.create_endpoint(tenant=self.tenant, user=self.user, **data)
        return Response({**EndpointOutput(endpoint).data, "secret": secret}, status=201)


class EndpointView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(summary="One webhook endpoint", responses={200: EndpointOutput, **ERRORS})
    def get(self, request: Request, endpoint_id: uuid.UUID) -> Response:
        return Response(EndpointOutput(selectors.get_endpoint(self.tenant, endpoint_id)).data)

    @extend_schema(
        summary="Change a webhook endpoint, or switch it on or off",
        request=EndpointChange,
        responses={200: EndpointOutput, **ERRORS},
    )
    def patch(self, request: Request, endpoint_id: uuid.UUID) -> Response:
        selectors.get_endpoint(self.tenant, endpoint_id)
        data = validated(EndpointChange(data=request.data))
        endpoint = services.change_endpoint(tenant=self.tenant, user=self.user, endpoint_id=endpoint_id, **data)
        return Response(EndpointOutput(endpoint).data)

    @extend_schema(summary="Delete a webhook endpoint", responses={204: None, **ERRORS})
    def delete(self, request: Request, endpoint_id: uuid.UUID) -> Response:
        services.delete_endpoint(tenant=self.tenant, user=self.user, endpoint_id=endpoint_id)
        return Response(status=204)


class RotateSecretView(ApiView):
    answers_secret = True
    write_scope = Scope.JOBS_WRITE

    @extend_schema(
        summary="Give a webhook endpoint a new secret",
        description="For 24 hours messages carry a signature by the old one too.",
        request=None,
        responses={200: NewEndpointOutput, **ERRORS},
    )
    def post(self, request: Request, endpoint_id: uuid.UUID) -> Response:
        endpoint, secret = services.rotate_secret(tenant=self.tenant, user=self.user, endpoint_id=endpoint_id)
        return Response({**EndpointOutput(endpoint).data, "secret": secret})


class PingView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(
        summary="Send a test message", request=None, responses={202: DeliveryDetailOutput, **ERRORS, **CONFLICT}
    )
    def post(self, request: Request, endpoint_id: uuid.UUID) -> Response:
        delivery = services.send_ping(tenant=self.tenant, user=self.user, endpoint_id=endpoint_id)
        found = selectors.get_delivery(self.tenant, endpoint_id, delivery.pk)
        return Response(DeliveryDetailOutput(found).data, status=202)


@extend_schema(summary="Deliveries to a webhook endpoint", responses={200: DeliveryOutput, **ERRORS})
class DeliveriesView(TenantListView[Delivery]):
    serializer_class = DeliveryOutput

    def select(self) -> QuerySet[Delivery]:
        return selectors.list_deliveries(self.tenant, self.kwargs["endpoint_id"])


class DeliveryView(ApiView):
    @extend_schema(summary="One delivery with its attempts", responses={200: DeliveryDetailOutput, **ERRORS})
    def get(self, request: Request, endpoint_id: uuid.UUID, delivery_id: uuid.UUID) -> Response:
        return Response(DeliveryDetailOutput(selectors.get_delivery(self.tenant, endpoint_id, delivery_id)).data)


class RedeliverView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(
        summary="Send a message again",
        description="With the id and body it had.",
        request=None,
        responses={202: DeliveryDetailOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request, endpoint_id: uuid.UUID, delivery_id: uuid.UUID) -> Response:
        delivery = services.redeliver(
            tenant=self.tenant, user=self.user, endpoint_id=endpoint_id, delivery_id=delivery_id
        )
        return Response(DeliveryDetailOutput(delivery).data, status=202)


class NotificationsView(ApiView):
    write_scope = Scope.JOBS_WRITE

    @extend_schema(summary="What you are told by e-mail", responses={200: PreferenceOutput, **ERRORS})
    def get(self, request: Request) -> Response:
        return Response(PreferenceOutput(get_preference(self.tenant, self.user.pk)).data)

    @extend_schema(
        summary="Choose what you are told by e-mail",
        request=PreferenceInput,
        responses={200: PreferenceOutput, **ERRORS},
    )
    def put(self, request: Request) -> Response:
        data = validated(PreferenceInput(data=request.data))
        return Response(PreferenceOutput(services.change_preference(tenant=self.tenant, user=self.user, **data)).data)
