"""The API of a tenant itself: settings, members, invitations, API tokens, exports, deletion, audit log."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, cast

from django.conf import settings
from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import tenant_serializers as shapes
from portal.api.serializers import LinkOutput
from portal.api.views.base import CONFLICT, ERRORS, ApiView, TenantListView, validated
from portal.audit.selectors import AuditFilter, read_page, render_entry
from portal.audit.views import csv_response
from portal.tenants.deletion import request_deletion, undo_deletion
from portal.tenants.exports import create_export, create_export_link
from portal.tenants.invitations import create_invitation, resend_invitation, revoke_invitation
from portal.tenants.members import change_member_role, leave_tenant, remove_member
from portal.tenants.models import ApiToken, Invitation, Membership, Scope, TenantExport
from portal.tenants.selectors import (
    get_api_token,
    get_export,
    get_member,
    list_api_tokens,
    list_exports,
    list_members,
    list_open_invitations,
)
from portal.tenants.services import change_tenant, create_api_token, require_owner, revoke_api_token

NO_CONTENT: dict[int, Any] = {204: None}


class OwnerListView(TenantListView[Any]):
    """A list only owners may see."""

    read_scope = Scope.ADMIN
    write_scope = Scope.ADMIN

    def get_queryset(self) -> QuerySet[Any]:
        if not getattr(self, "swagger_fake_view", False):
            require_owner(tenant=self.tenant, user=self.user)
        return super().get_queryset()


class TenantView(ApiView):
    write_scope = Scope.ADMIN

    @extend_schema(summary="The token's tenant", responses={200: shapes.TenantOutput, **ERRORS})
    def get(self, request: Request) -> Response:
        return Response(shapes.TenantOutput(self.tenant).data)

    @extend_schema(
        summary="Change the tenant's settings",
        request=shapes.TenantChange,
        responses={200: shapes.TenantOutput, **ERRORS},
    )
    def patch(self, request: Request) -> Response:
        data = validated(shapes.TenantChange(data=request.data))
        tenant = change_tenant(tenant=self.tenant, user=self.user, **data)
        return Response(shapes.TenantOutput(tenant).data)


class TenantDeletionView(ApiView):
    read_scope = Scope.ADMIN
    write_scope = Scope.ADMIN

    @extend_schema(
        summary="Delete the tenant",
        description="Its jobs are cancelled at once; everything else stays for 7 days, in which it can be undone.",
        request=shapes.DeletionInput,
        responses={202: shapes.TenantOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        data = validated(shapes.DeletionInput(data=request.data))
        tenant = request_deletion(tenant=self.tenant, user=self.user, confirmation=data["confirmation"])
        return Response(shapes.TenantOutput(tenant).data, status=202)

    @extend_schema(
        summary="Undo the deletion of the tenant", responses={200: shapes.TenantOutput, **ERRORS, **CONFLICT}
    )
    def delete(self, request: Request) -> Response:
        tenant = undo_deletion(tenant=self.tenant, user=self.user)
        return Response(shapes.TenantOutput(tenant).data)


# --- members ---------------------------------------------------------------------------------------------------------


@extend_schema(summary="Members", responses={200: shapes.MemberOutput, **ERRORS})
class MembersView(TenantListView[Membership]):
    serializer_class = shapes.MemberOutput

    def select(self) -> QuerySet[Membership]:
        return list_members(self.tenant)


class MemberView(ApiView):
    write_scope = Scope.ADMIN

    @extend_schema(summary="One member", responses={200: shapes.MemberOutput, **ERRORS})
    def get(self, request: Request, membership_id: int) -> Response:
        return Response(shapes.MemberOutput(get_member(self.tenant, membership_id)).data)

    @extend_schema(
        summary="Change a member's role",
        request=shapes.MemberChange,
        responses={200: shapes.MemberOutput, **ERRORS, **CONFLICT},
    )
    def patch(self, request: Request, membership_id: int) -> Response:
        get_member(self.tenant, membership_id)
        data = validated(shapes.MemberChange(data=request.data))
        member = change_member_role(tenant=self.tenant, user=self.user, membership_id=membership_id, role=data["role"])
        return Response(shapes.MemberOutput(member).data)

    @extend_schema(
        summary="Remove a member",
        description="Their API tokens are revoked. The last owner cannot be removed.",
        responses={**NO_CONTENT, **ERRORS, **CONFLICT},
    )
    def delete(self, request: Request, membership_id: int) -> Response:
        remove_member(tenant=self.tenant, user=self.user, membership_id=membership_id)
        return Response(status=204)


class LeaveView(ApiView):
    write_scope = Scope.ADMIN

    @extend_schema(
        summary="Leave the tenant",
        description="The token's user is no longer a member; the token dies with the membership.",
        request=None,
        responses={**NO_CONTENT, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        leave_tenant(tenant=self.tenant, user=self.user)
        return Response(status=204)


@extend_schema_view(get=extend_schema(summary="Open invitations", responses={200: shapes.InvitationOutput, **ERRORS}))
class InvitationsView(OwnerListView):
    serializer_class = shapes.InvitationOutput

    def select(self) -> QuerySet[Invitation]:
        return list_open_invitations(self.tenant)

    @extend_schema(
        summary="Invite somebody",
        description="The link is mailed to the address; it is in this answer and cannot be shown again.",
        request=shapes.InvitationInput,
        responses={201: shapes.SentOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        data = validated(shapes.InvitationInput(data=request.data))
        sent = create_invitation(tenant=self.tenant, user=self.user, base_url=request.build_absolute_uri("/"), **data)
        return Response(shapes.SentOutput(sent).data, status=201)


class InvitationView(ApiView):
    read_scope = Scope.ADMIN
    write_scope = Scope.ADMIN

    @extend_schema(summary="Revoke an invitation", responses={**NO_CONTENT, **ERRORS})
    def delete(self, request: Request, invitation_id: uuid.UUID) -> Response:
        revoke_invitation(tenant=self.tenant, user=self.user, invitation_id=invitation_id)
        return Response(status=204)


class ResendInvitationView(ApiView):
    read_scope = Scope.ADMIN
    write_scope = Scope.ADMIN

    @extend_schema(
        summary="Send an invitation again",
        description="With a new link, valid for the whole time again; the old link stops working.",
        request=None,
        responses={200: shapes.SentOutput, **ERRORS},
    )
    def post(self, request: Request, invitation_id: uuid.UUID) -> Response:
        base_url = request.build_absolute_uri("/")
        sent = resend_invitation(tenant=self.tenant, user=self.user, invitation_id=invitation_id, base_url=base_url)
        return Response(shapes.SentOutput(sent).data)


# --- API tokens ------------------------------------------------------------------------------------------------------


@extend_schema_view(get=extend_schema(summary="Your API tokens", responses={200: shapes.TokenOutput, **ERRORS}))
class TokensView(TenantListView[ApiToken]):
    serializer_class = shapes.TokenOutput
    write_scope = Scope.ADMIN

    def select(self) -> QuerySet[ApiToken]:
        return list_api_tokens(self.tenant, self.user)

    @extend_schema(
        summary="Make an API token",
        description="For the same user, with no scope the calling token has not. Its secret cannot be shown again.",
        request=shapes.TokenInput,
        responses={201: shapes.NewTokenOutput, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        data = validated(shapes.TokenInput(data=request.data))
        made_with = cast(ApiToken, request.auth)
        token, secret = create_api_token(tenant=self.tenant, user=self.user, made_with=made_with, **data)
        return Response({**shapes.TokenOutput(token).data, "secret": secret}, status=201)


class TokenView(ApiView):
    write_scope = Scope.ADMIN

    @extend_schema(summary="One of your API tokens", responses={200: shapes.TokenOutput, **ERRORS})
    def get(self, request: Request, token_id: uuid.UUID) -> Response:
        return Response(shapes.TokenOutput(get_api_token(self.tenant, self.user, token_id)).data)

    @extend_schema(summary="Revoke an API token", responses={**NO_CONTENT, **ERRORS})
    def delete(self, request: Request, token_id: uuid.UUID) -> Response:
        revoke_api_token(tenant=self.tenant, user=self.user, token_id=token_id)
        return Response(status=204)


# --- exports and audit log -------------------------------------------------------------------------------------------


@extend_schema_view(get=extend_schema(summary="Exports", responses={200: shapes.ExportOutput, **ERRORS}))
class ExportsView(OwnerListView):
    serializer_class = shapes.ExportOutput

    def select(self) -> QuerySet[TenantExport]:
        return list_exports(self.tenant)

    @extend_schema(
        summary="Export the tenant",
        description="Everything it owns as one zip, made in the background: ask for it until its status is 'ready'.",
        request=None,
        responses={202: shapes.ExportOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request) -> Response:
        export = create_export(tenant=self.tenant, user=self.user)
        return Response(shapes.ExportOutput(export).data, status=202)


class ExportView(ApiView):
    read_scope = Scope.ADMIN
    write_scope = Scope.ADMIN

    @extend_schema(summary="One export", responses={200: shapes.ExportOutput, **ERRORS})
    def get(self, request: Request, export_id: uuid.UUID) -> Response:
        export = get_export(self.tenant, export_id)
        require_owner(tenant=self.tenant, user=self.user)
        return Response(shapes.ExportOutput(export).data)


class ExportLinkView(ApiView):
    read_scope = Scope.ADMIN
    write_scope = Scope.ADMIN

    @extend_schema(
        summary="Link to download an export",
        description="Whoever has the link can use it.",
        request=None,
        responses={200: LinkOutput, **ERRORS, **CONFLICT},
    )
    def post(self, request: Request, export_id: uuid.UUID) -> Response:
        export = get_export(self.tenant, export_id)
        link = create_export_link(tenant=self.tenant, user=self.user, export=export)
        expires_at = timezone.now() + timedelta(seconds=settings.DOWNLOAD_LINK_SECONDS)
        return Response(LinkOutput({"url": request.build_absolute_uri(link), "expires_at": expires_at}).data)


class AuditView(ApiView):
    read_scope = Scope.ADMIN
    write_scope = Scope.ADMIN

    @extend_schema(
        summary="Audit log",
        description="Newest first. Ask again with 'before' = 'next' of the answer, until that is null.",
        parameters=[shapes.AuditQuery],
        responses={200: shapes.AuditOutput, **ERRORS},
    )
    def get(self, request: Request) -> Response:
        require_owner(tenant=self.tenant, user=self.user)
        query = validated(shapes.AuditQuery(data=request.query_params))
        before, limit = query.pop("before", None), query.pop("limit")
        page = read_page(self.tenant, AuditFilter(**query), before=before, limit=limit)
        return Response({"entries": [render_entry(entry) for entry in page.entries], "next": page.next})


class AuditCsvView(ApiView):
    read_scope = Scope.ADMIN
    write_scope = Scope.ADMIN

    @extend_schema(
        summary="Audit log as CSV",
        parameters=[shapes.AuditFilterQuery],
        responses={(200, "text/csv"): OpenApiTypes.STR, **ERRORS},
    )
    def get(self, request: Request) -> HttpResponseBase:
        require_owner(tenant=self.tenant, user=self.user)
        query = validated(shapes.AuditFilterQuery(data=request.query_params))
        return csv_response(self.tenant, AuditFilter(**query))
