from django.contrib import admin

from portal.adapters.models import AdapterVersion
from portal.audit.admin import AuditedAdmin
from portal.read_only_admin import ReadOnly


@admin.register(AdapterVersion)
class AdapterVersionAdmin(ReadOnly, AuditedAdmin):
    list_display = ["name", "job", "step", "rank", "size_bytes", "final", "removed", "created_at"]
    list_filter = ["final", "removed", "job__tenant"]
    list_select_related = ["job"]
    search_fields = ["name", "job__id"]
