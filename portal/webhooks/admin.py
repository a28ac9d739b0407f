"""Webhooks on the admin pages: to look at, never the secrets."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.audit.admin import AuditedAdmin
from portal.large_tables_admin import LargeTableAdmin, narrow_to_id
from portal.read_only_admin import ReadOnly, ReadOnlyInline
from portal.webhooks.models import Attempt, Delivery, Endpoint, Mail


@admin.register(Endpoint)
class EndpointAdmin(ReadOnly, AuditedAdmin):
    list_display = ["url", "tenant", "enabled", "failing_since", "created_at", "messages"]
    list_filter = ["enabled", ("failing_since", admin.EmptyFieldListFilter), "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["url"]
    exclude = ["secret", "old_secret"]

    @admin.display(description="Messages")
    def messages(self, endpoint: Endpoint) -> SafeString:
        address = reverse("admin:webhooks_delivery_changelist")
        return format_html('<a href="{}?endpoint__id__exact={}">Messages</a>', address, endpoint.pk)


class AttemptInline(ReadOnlyInline):
    model = Attempt
    fields = ["at", "duration_ms", "status_code", "error"]
    show_change_link = False


@admin.register(Delivery)
class DeliveryAdmin(LargeTableAdmin):
    list_display = ["created_at", "event_type", "endpoint", "state", "tries", "next_attempt_at"]
    list_filter = ["state"]
    list_select_related = ["endpoint"]
    ordering = ["-created_at"]
    search_fields = ["endpoint__id"]
    search_help_text = "The id of an endpoint."
    inlines = [AttemptInline]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return narrow_to_id(queryset, "endpoint_id", search_term), False


@admin.register(Mail)
class MailAdmin(LargeTableAdmin):
    list_display = ["created_at", "subject", "user", "state", "tries", "error"]
    list_filter = ["state"]
    list_select_related = ["user"]
    ordering = ["-created_at"]
