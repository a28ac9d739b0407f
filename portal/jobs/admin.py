from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.adapters.models import AdapterVersion
from portal.audit.admin import AuditedAdmin
from portal.jobs.models import Job, JobEvent
from portal.read_only_admin import ReadOnly, ReadOnlyInline


class AdapterVersionInline(ReadOnlyInline):
    model = AdapterVersion
    fields = ["version", "step", "rank", "size_bytes", "final", "removed", "created_at"]


@admin.register(Job)
class JobAdmin(ReadOnly, AuditedAdmin):
    list_display = [
        "name",
        "tenant",
        "status",
        "step",
        "steps",
        "base_model",
        "created_at",
        "finished_at",
        "events_link",
    ]
    list_filter = ["status", "tenant", "base_model"]
    list_select_related = ["tenant", "base_model"]
    search_fields = ["id", "name"]
    date_hierarchy = "created_at"
    inlines = [AdapterVersionInline]

    @admin.display(description="Events")
    def events_link(self, job: Job) -> SafeString:
        address = reverse("admin:jobs_jobevent_changelist")
        return format_html('<a href="{}?job__id__exact={}">Events</a>', address, job.pk)


@admin.register(JobEvent)
class JobEventAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["job", "seq", "type", "time"]
    list_filter = ["type"]
    list_select_related = ["job"]
    search_fields = ["job__id"]
    show_full_result_count = False

    def has_delete_permission(self, request: object, obj: JobEvent | None = None) -> bool:
        return False
