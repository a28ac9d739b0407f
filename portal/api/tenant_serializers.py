"""What the API takes and gives of a tenant itself. Rules live in the services; these only name and shape fields."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.tenants.invitations import Sent
from portal.tenants.models import ApiToken, Invitation, Membership, Role, Scope, Tenant, TenantExport


class TenantOutput(serializers.ModelSerializer[Tenant]):
    delete_at = serializers.DateTimeField(allow_null=True, help_text="Set: it is deleted then, unless it is undone.")

    class Meta:
        model = Tenant
        fields = ["id", "name", "slug", "require_mfa", "max_active_jobs", "delete_at", "created_at"]


class TenantChange(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=200, required=False)
    require_mfa = serializers.BooleanField(required=False, help_text="Members set up two-factor sign-in first.")


class DeletionInput(serializers.Serializer[Any]):
    confirmation = serializers.CharField(help_text="The name of the tenant.")


class MemberOutput(serializers.ModelSerializer[Membership]):
    username = serializers.CharField(source="user.username")
    email = serializers.CharField(source="user.email")
    has_mfa = serializers.BooleanField(help_text="Has set up two-factor sign-in.")

    class Meta:
        model = Membership
        fields = ["id", "username", "email", "role", "has_mfa", "created_at"]


class MemberChange(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=Role.choices)


class InvitationOutput(serializers.ModelSerializer[Invitation]):
    class Meta:
        model = Invitation
        fields = ["id", "email", "role", "created_at", "sent_at", "expires_at"]


class InvitationInput(serializers.Serializer[Any]):
    email = serializers.EmailField(max_length=254)
    role = serializers.ChoiceField(choices=Role.choices, default=Role.DEVELOPER)


class SentOutput(serializers.Serializer[Sent]):
    invitation = InvitationOutput()
    link = serializers.CharField(help_text="Works once; cannot be shown again.")
    mailed = serializers.BooleanField(help_text="The mail was handed to the mail server.")


class TokenOutput(serializers.ModelSerializer[ApiToken]):
    class Meta:
        model = ApiToken
        fields = ["id", "name", "prefix", "scopes", "created_at", "expires_at", "last_used_at"]


class NewTokenOutput(TokenOutput):
    secret = serializers.CharField(help_text="Cannot be shown again.")

    class Meta(TokenOutput.Meta):
        fields = [*TokenOutput.Meta.fields, "secret"]


class TokenInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=Scope.choices), allow_empty=False)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, help_text="Never, where it is left out.")


class ExportOutput(serializers.ModelSerializer[TenantExport]):
    class Meta:
        model = TenantExport
        fields = ["id", "status", "parts_done", "parts_total", "size_bytes", "error", "created_at", "expires_at"]


class AuditFilterQuery(serializers.Serializer[Any]):
    actor = serializers.CharField(required=False, help_text="Part of the name of whoever acted.")
    action = serializers.CharField(required=False, help_text="'job.cancelled', or 'job' for all its verbs.")
    target = serializers.CharField(required=False, help_text="Part of an object's name, or its id.")
    since = serializers.DateField(required=False, help_text="A UTC day.")
    until = serializers.DateField(required=False, help_text="A UTC day, included.")


class AuditQuery(AuditFilterQuery):
    before = serializers.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    limit = serializers.IntegerField(default=50, min_value=1, max_value=500)


class ActorOutput(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=["user", "token", "admin", "system"])
    id = serializers.CharField(allow_blank=True)
    label = serializers.CharField()  # type: ignore[assignment]  # taken off the class by DRF


class ObjectOutput(serializers.Serializer[Any]):
    type = serializers.CharField()
    id = serializers.CharField(allow_blank=True)
    label = serializers.CharField()  # type: ignore[assignment]  # taken off the class by DRF


class EntryOutput(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    time = serializers.DateTimeField()
    actor = ActorOutput()
    on_behalf_of = serializers.CharField(allow_blank=True)
    action = serializers.CharField()
    object = ObjectOutput()
    before = serializers.DictField()
    after = serializers.DictField()
    reason = serializers.CharField(allow_blank=True)
    request_id = serializers.CharField(allow_blank=True)
    address = serializers.CharField(allow_null=True)


class AuditOutput(serializers.Serializer[Any]):
    entries = EntryOutput(many=True)
    next = serializers.IntegerField(allow_null=True, help_text="The next page's 'before'; null after the last.")
