from __future__ import annotations

import uuid

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import serializers
from portal.api.views.base import CONFLICT, ERRORS, ApiView, TenantListView, validated
from portal.datasets.selectors import get_dataset_version
from portal.errors import FieldError, InvalidInput
from portal.rewards.models import RewardFunction, RewardTrial
from portal.rewards.selectors import (
    get_reward_function,
    get_reward_trial,
    get_reward_version,
    list_reward_functions,
    list_reward_trials,
)
from portal.rewards.services import check_reward_spec, create_reward_version
from portal.rewards.trial_services import Sampling, TrialRows, cancel_reward_trial, start_reward_trial
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


class ValidateRewardView(ApiView):
    write_scope = Scope.READ  # it changes nothing

    @extend_schema(
        summary="Check a reward without saving or running it",
        request=serializers.RewardSpecInput,
        responses={200: serializers.RewardValidOutput, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        data = validated(serializers.RewardSpecInput(data=request.data))
        return Response({"valid": True, "spec": check_reward_spec(data["spec"])})


@extend_schema_view(
    get=extend_schema(
        summary="Reward trials",
        description="Newest first; without their scores. A trial is deleted a week after it was started.",
        responses={200: serializers.RewardTrialSummary, **ERRORS},
    )
)
class RewardTrialsView(TenantListView[RewardTrial]):
    write_scope = Scope.REWARDS_WRITE
    serializer_class = serializers.RewardTrialSummary

    def select(self) -> QuerySet[RewardTrial]:
        return list_reward_trials(self.tenant)

    @extend_schema(
        summary="Test a reward before training on it",
        description=(
            "Runs a saved version (`reward_version`) or a reward that is not saved (`spec`) on one `row`, one `line` "
            "of a `dataset_version`, or on `rows` lines of it drawn by chance: on the `completions` given, or on fresh "
            "`samples` of a `base_model`. It runs beside the request: read it again until `state` is done, failed or "
            "cancelled. With `validate_only` the reward is checked and nothing is run."
        ),
        request=serializers.RewardTrialInput,
        responses={
            200: serializers.RewardValidOutput,
            202: serializers.RewardTrialOutput,
            **ERRORS,
            **CONFLICT,
        },
    )
    def post(self, request: Request) -> Response:
        data = validated(serializers.RewardTrialInput(data=request.data))
        version_id, spec = data["reward_version"], data["spec"]
        if (version_id is None) == (spec is None):
            fault = FieldError("spec", "Give either spec or reward_version.")
            raise InvalidInput("The test was not started.", fields=[fault])
        version = get_reward_version(self.tenant, version_id) if version_id else None
        if data["validate_only"]:
            return Response({"valid": True, "spec": version.spec if version else check_reward_spec(spec)})
        dataset_id = data["dataset_version"]
        trial = start_reward_trial(
            tenant=self.tenant,
            user=self.user,
            reward_version=version,
            spec=spec,
            rows=TrialRows(
                row=data["row"],
                dataset_version=get_dataset_version(self.tenant, dataset_id) if dataset_id else None,
                line=data["line"],
                count=data["rows"],
                completions=data["completions"],
            ),
            sampling=Sampling(
                base_model_id=data["base_model"],
                **{name: data[name] for name in ("samples", "max_tokens", "temperature", "seed", "system_prompt")},
            ),
        )
        return Response(serializers.RewardTrialOutput(trial).data, status=202)


class RewardTrialView(ApiView):
    @extend_schema(summary="One reward trial", responses={200: serializers.RewardTrialOutput, **ERRORS})
    def get(self, request: Request, trial_id: uuid.UUID) -> Response:
        return Response(serializers.RewardTrialOutput(get_reward_trial(self.tenant, trial_id)).data)


class CancelRewardTrialView(ApiView):
    write_scope = Scope.REWARDS_WRITE

    @extend_schema(
        summary="Cancel a reward trial", request=None, responses={200: serializers.RewardTrialOutput, **ERRORS}
    )
    def post(self, request: Request, trial_id: uuid.UUID) -> Response:
        trial = cancel_reward_trial(tenant=self.tenant, user=self.user, trial_id=trial_id)
        return Response(serializers.RewardTrialOutput(trial).data)
