"""Webhooks on the admin pages: to look at, never the secrets."""

from django.contrib import admin

from portal.audit.admin import AuditedAdmin
from portal.read_only_admin import ReadOnly, ReadOnlyInline
from portal.webhooks.models import Attempt, Delivery, Endpoint, Mail


@admin.register(Endpoint)
class EndpointAdmin(ReadOnly, AuditedAdmin):
    list_display = ["url", "tenant", "enabled", "failing_since", "created_at"]
    list_filter = ["enabled", ("failing_since", admin.EmptyFieldListFilter), "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["url"]
    exclude = ["secret", "old_secret"]


class AttemptInline(ReadOnlyInline):
    model = Attempt
    fields = ["at", "duration_ms", "status_code", "error"]
    show_change_link = False


@admin.register(Delivery)
class DeliveryAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["created_at", "event_type", "endpoint", "state", "tries", "next_attempt_at"]
    list_filter = ["state", "event_type"]
    list_select_related = ["endpoint"]
    search_fields = ["endpoint__url", "endpoint__tenant__name"]
    inlines = [AttemptInline]
    show_full_result_count = False


@admin.register(Mail)
class MailAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["created_at", "subject", "user", "state", "tries", "error"]
    list_filter = ["state"]
    list_select_related = ["user"]
    show_full_result_count = False
