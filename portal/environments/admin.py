from django.contrib import admin

from portal.audit.admin import AuditedAdmin
from portal.environments.models import DocumentSet, EnvironmentToken
from portal.read_only_admin import ReadOnly


@admin.register(DocumentSet)
class DocumentSetAdmin(ReadOnly, AuditedAdmin):
    list_display = ["name", "tenant", "documents", "size_bytes", "created_at"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
    search_fields = ["name", "sha256"]


@admin.register(EnvironmentToken)
class EnvironmentTokenAdmin(ReadOnly, AuditedAdmin):
    list_display = ["name", "tenant", "created_at", "changed_at"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
    search_fields = ["name"]
