from __future__ import annotations

from typing import Any, get_args

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from engine.events import Payload
from portal.audit.admin import AuditedAdmin
from portal.jobs.models import Job, JobEvent
from portal.large_tables_admin import CappedPaginator, RowsOfJobsAdmin
from portal.read_only_admin import ReadOnly

EVENT_TYPES = [kind.model_fields["type"].default for kind in get_args(get_args(Payload)[0])]


@admin.register(Job)
class JobAdmin(ReadOnly, AuditedAdmin):
    """Not to be deleted: its events are kept for as long as its tenant."""

    list_display = [
        "name",
        "tenant",
        "status",
        "step",
        "steps",
        "base_model",
        "created_at",
        "finished_at",
        "more",
    ]
    list_filter = ["status", "tenant", "base_model"]
    list_select_related = ["tenant", "base_model"]
    search_fields = ["id", "name"]
    date_hierarchy = "created_at"
    paginator = CappedPaginator
    show_full_result_count = False

    @admin.display(description="More")
    def more(self, job: Job) -> SafeString:
        """What there is of the job."""
        lists = (
            ("jobs_jobevent", "Events"),
            ("adapters_adapterversion", "Adapters"),
            ("rollouts_rolloutgroup", "Rollouts"),
        )
        links = [
            format_html('<a href="{}?job__id__exact={}">{}</a>', reverse(f"admin:{name}_changelist"), job.pk, label)
            for name, label in lists
        ]
        return format_html("{} · {} · {}", *links)

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False


class TypeFilter(admin.SimpleListFilter):
    """By the type of events, of one job: the index is by job and type."""

    title = "type"
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in EVENT_TYPES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobEvent]) -> QuerySet[JobEvent]:
        return queryset.filter(type=self.value()) if self.value() else queryset


@admin.register(JobEvent)
class JobEventAdmin(RowsOfJobsAdmin):
    list_display = ["job", "seq", "type", "time"]

    def get_list_filter(self, request: HttpRequest) -> Any:
        return [TypeFilter] if self.is_of_one_job(request) else []

    def has_delete_permission(self, request: HttpRequest, obj: JobEvent | None = None) -> bool:
        return False
