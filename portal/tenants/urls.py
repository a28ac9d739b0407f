from django.urls import path

from portal.tenants import settings_views, views, visitor_views

app_name = "tenants"
urlpatterns = [
    path("tokens/", views.token_list, name="tokens"),
    path("tokens/<uuid:token_id>/revoke/", views.token_revoke, name="token-revoke"),
    path("members/", views.member_list, name="members"),
    path("members/leave/", views.member_leave, name="member-leave"),
    path("members/<int:membership_id>/role/", views.member_role, name="member-role"),
    path("members/<int:membership_id>/remove/", views.member_remove, name="member-remove"),
    path("members/invitations/<uuid:invitation_id>/resend/", views.invitation_resend, name="invitation-resend"),
    path("members/invitations/<uuid:invitation_id>/revoke/", views.invitation_revoke, name="invitation-revoke"),
    path("invitations/<str:secret>/", visitor_views.invitation_accept, name="invitation-accept"),
    path("settings/", settings_views.tenant_settings, name="settings"),
    path("settings/exports/", settings_views.export_create, name="export-create"),
    path("settings/exports/<uuid:export_id>/", settings_views.export_row, name="export-row"),
    path("settings/exports/<uuid:export_id>/download/", settings_views.export_download, name="export-download"),
    path("settings/deletion/", settings_views.deletion_request, name="deletion"),
    path("settings/deletion/undo/", settings_views.deletion_undo, name="deletion-undo"),
    path("download/export/<str:token>", visitor_views.export_file, name="export-file"),
    path("tenants/<uuid:tenant_id>/switch/", views.tenant_switch, name="switch"),
    path("impersonation/end/", visitor_views.impersonation_end, name="impersonation-end"),
    path("impersonation/<int:membership_id>/", visitor_views.impersonation_start, name="impersonation-start"),
]
