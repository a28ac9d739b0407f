"""Quotas on the admin pages: changed through the service, with a reason."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest

from portal.audit.admin import AuditedAdmin
from portal.large_tables_admin import LargeTableAdmin
from portal.read_only_admin import NoAdd, ReadOnly
from portal.tenants.selectors import find_tenant
from portal.usage.forms import QuotasForm
from portal.usage.models import QuotaChange, QuotaNotice, TenantQuotas, UsageRecord
from portal.usage.services import OPTIONAL_LIMITS, TENANT_LIMITS, change_quotas


@admin.register(TenantQuotas)
class TenantQuotasAdmin(NoAdd, AuditedAdmin):
    """Reached from the list of tenants. There is no adding: it could not start from the tenant's own limits."""

    form = QuotasForm
    list_display = ["tenant", "active_jobs", *OPTIONAL_LIMITS]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name", "tenant__slug"]
    readonly_fields = ["tenant"]
    fieldsets = [
        (None, {"fields": ["tenant"]}),
        ("Always limited", {"fields": TENANT_LIMITS}),
        ("Empty does not limit", {"fields": OPTIONAL_LIMITS}),
        ("Why", {"fields": ["reason"]}),
    ]

    @admin.display(description="max active jobs")
    def active_jobs(self, quotas: TenantQuotas) -> int:
        return quotas.tenant.max_active_jobs

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> TenantQuotas | None:
        """Every tenant has this page, also one whose quotas nobody has changed yet."""
        quotas = super().get_object(request, object_id, from_field)
        if quotas is None and (tenant := find_tenant(object_id)) is not None:
            return TenantQuotas(tenant=tenant)
        return quotas

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        self._act_as_admin(request)
        user = cast(User, request.user)
        change_quotas(tenant=obj.tenant, user=user, reason=form.cleaned_data["reason"], limits=form.limits())

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(QuotaChange)
class QuotaChangeAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["changed_at", "tenant", "changed_by_name", "reason"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]


@admin.register(QuotaNotice)
class QuotaNoticeAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["created_at", "tenant", "kind", "level", "used", "limit"]
    list_filter = ["level", "kind", "tenant"]
    list_select_related = ["tenant"]


@admin.register(UsageRecord)
class UsageRecordAdmin(LargeTableAdmin):
    list_display = [
        "day",
        "tenant",
        "job_name",
        "member_name",
        "tokens_sampled",
        "tokens_trained",
        "accelerator_seconds",
    ]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
