from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from portal.adapters.models import AdapterVersion
from portal.audit.admin import AuditedAdmin
from portal.large_tables_admin import LargeTableAdmin, narrow_to_id


@admin.register(AdapterVersion)
class AdapterVersionAdmin(LargeTableAdmin, AuditedAdmin):
    list_display = ["name", "job", "step", "rank", "size_bytes", "final", "removed", "created_at"]
    list_filter = ["final", "removed", "tenant"]
    list_select_related = ["job"]
    ordering = ["-created_at"]
    search_fields = ["job__id"]
    search_help_text = "The id of a job."

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return narrow_to_id(queryset, "job_id", search_term), False
