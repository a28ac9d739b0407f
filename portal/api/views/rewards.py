from __future__ import annotations

import uuid

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import serializers
from portal.api.views.base import ERRORS, ApiView, TenantListView, validated
from portal.rewards.models import RewardFunction
from portal.rewards.selectors import get_reward_function, list_reward_functions
from portal.rewards.services import create_reward_version
from portal.tenants.models import Scope


@extend_schema_view(
    get=extend_schema(summary="Reward functions", responses={200: serializers.RewardFunctionOutput, **ERRORS})
)
class RewardFunctionsView(TenantListView[RewardFunction]):
    write_scope = Scope.REWARDS_WRITE
    serializer_class = serializers.RewardFunctionOutput

    def select(self) -> QuerySet[RewardFunction]:
        return list_reward_functions(self.tenant)

    @extend_schema(
        summary="Add a version of a reward function",
        request=serializers.RewardFunctionInput,
        responses={201: serializers.RewardVersionOutput, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        data = validated(serializers.RewardFunctionInput(data=request.data))
        version = create_reward_version(tenant=self.tenant, user=self.user, **data)
        return Response(serializers.RewardVersionOutput(version).data, status=201)


class RewardFunctionView(ApiView):
    @extend_schema(summary="One reward function", responses={200: serializers.RewardFunctionOutput, **ERRORS})
    def get(self, request: Request, reward_function_id: uuid.UUID) -> Response:
        reward_function = get_reward_function(self.tenant, reward_function_id)
        return Response(serializers.RewardFunctionOutput(reward_function).data)
