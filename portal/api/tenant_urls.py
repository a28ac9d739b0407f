"""Addresses of the tenant itself, included by ``urls.py``."""

from django.urls import path

from portal.api.views import tenants

urlpatterns = [
    path("tenant/", tenants.TenantView.as_view(), name="tenant"),
    path("tenant/deletion/", tenants.TenantDeletionView.as_view(), name="tenant-deletion"),
    path("members/", tenants.MembersView.as_view(), name="members"),
    path("members/leave/", tenants.LeaveView.as_view(), name="member-leave"),
    path("members/<int:membership_id>/", tenants.MemberView.as_view(), name="member"),
    path("invitations/", tenants.InvitationsView.as_view(), name="invitations"),
    path("invitations/<uuid:invitation_id>/", tenants.InvitationView.as_view(), name="invitation"),
    path("invitations/<uuid:invitation_id>/resend/", tenants.ResendInvitationView.as_view(), name="invitation-resend"),
    path("api-tokens/", tenants.TokensView.as_view(), name="api-tokens"),
    path("api-tokens/<uuid:token_id>/", tenants.TokenView.as_view(), name="api-token"),
    path("exports/", tenants.ExportsView.as_view(), name="exports"),
    path("exports/<uuid:export_id>/", tenants.ExportView.as_view(), name="export"),
    path("exports/<uuid:export_id>/link/", tenants.ExportLinkView.as_view(), name="export-link"),
    path("audit/", tenants.AuditView.as_view(), name="audit"),
    path("audit/export.csv", tenants.AuditCsvView.as_view(), name="audit-csv"),
]
