"""What lists are narrowed to by the query: checked like any input, told in the schema.

A view names its class as ``query_serializer``; each field says by ``lookups`` what it is looked up by.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from django.db.models import Model, QuerySet
from rest_framework import serializers

from portal.jobs.models import Status
from portal.rewards.models import TrialState
from portal.tenants.models import Role, TenantExport

ModelT = TypeVar("ModelT", bound=Model)


class ListQuery(serializers.Serializer[Any]):
    """No filter at all: the base of every list's own."""

    lookups: ClassVar[dict[str, str]] = {}

    def narrow(self, queryset: QuerySet[ModelT]) -> QuerySet[ModelT]:
        """Only what every filter given lets through; several values of one filter are alternatives."""
        given = {name: value for name, value in self.validated_data.items() if value not in ("", [], None)}
        return queryset.filter(**{self.lookups[name]: value for name, value in given.items()})


class CreatedQuery(ListQuery):
    created_after = serializers.DateTimeField(required=False, help_text="This moment or later.")
    created_before = serializers.DateTimeField(required=False, help_text="Earlier than this moment.")

    lookups: ClassVar[dict[str, str]] = {"created_after": "created_at__gte", "created_before": "created_at__lt"}


class NamedQuery(CreatedQuery):
    name = serializers.CharField(required=False, allow_blank=True, help_text="Part of the name, in any case.")

    lookups: ClassVar[dict[str, str]] = {**CreatedQuery.lookups, "name": "name__icontains"}


class JobsQuery(NamedQuery):
    status = serializers.MultipleChoiceField(
        choices=Status.choices, required=False, help_text="Give it again for another."
    )
    base_model = serializers.CharField(required=False, allow_blank=True)
    dataset = serializers.UUIDField(required=False, help_text="Any version of it.")
    dataset_version = serializers.UUIDField(required=False)
    reward_function = serializers.UUIDField(required=False, help_text="Any version of it.")
    reward_version = serializers.UUIDField(required=False)

    lookups: ClassVar[dict[str, str]] = {
        **NamedQuery.lookups,
        "status": "status__in",
        "base_model": "base_model_id",
        "dataset": "dataset_version__dataset_id",
        "dataset_version": "dataset_version_id",
        "reward_function": "reward_version__reward_function_id",
        "reward_version": "reward_version_id",
    }


class AdaptersQuery(CreatedQuery):
    final = serializers.BooleanField(required=False, allow_null=True, default=None, help_text="The last of its job.")
    removed = serializers.BooleanField(required=False, allow_null=True, default=None, help_text="Its files are gone.")

    lookups: ClassVar[dict[str, str]] = {**CreatedQuery.lookups, "final": "final", "removed": "removed"}


class AllAdaptersQuery(AdaptersQuery):
    job = serializers.UUIDField(required=False)
    base_model = serializers.CharField(required=False, allow_blank=True)

    lookups: ClassVar[dict[str, str]] = {
        **AdaptersQuery.lookups,
        "job": "job_id",
        "base_model": "job__base_model_id",
    }


class RewardTrialsQuery(CreatedQuery):
    state = serializers.MultipleChoiceField(choices=TrialState.choices, required=False)
    reward_version = serializers.UUIDField(required=False)

    lookups: ClassVar[dict[str, str]] = {
        **CreatedQuery.lookups,
        "state": "state__in",
        "reward_version": "reward_version_id",
    }


class MembersQuery(ListQuery):
    role = serializers.MultipleChoiceField(choices=Role.choices, required=False)

    lookups: ClassVar[dict[str, str]] = {"role": "role__in"}


class ExportsQuery(CreatedQuery):
    status = serializers.MultipleChoiceField(choices=TenantExport.Status.choices, required=False)

    lookups: ClassVar[dict[str, str]] = {**CreatedQuery.lookups, "status": "status__in"}
