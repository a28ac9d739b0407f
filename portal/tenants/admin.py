from django.contrib import admin

from portal.read_only_admin import NoAdd
from portal.tenants.models import ApiToken, Membership, Tenant


class MembershipInline(admin.TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ["user"]


@admin.register(Tenant)
class TenantAdmin(admin.ModelAdmin):
    list_display = ["name", "slug", "weight", "max_active_jobs", "max_dataset_bytes", "created_at"]
    search_fields = ["name", "slug"]
    prepopulated_fields = {"slug": ["name"]}
    inlines = [MembershipInline]

    def get_readonly_fields(self, request, obj=None):
        """Limits of a tenant that exists are changed on the page of its quotas, with a reason."""
        return ["max_active_jobs", "max_dataset_bytes", "max_dataset_rows"] if obj is not None else []


@admin.register(Membership)
class MembershipAdmin(admin.ModelAdmin):
    list_display = ["user", "tenant", "role", "created_at"]
    list_filter = ["role", "tenant"]
    list_select_related = ["user", "tenant"]
    autocomplete_fields = ["user", "tenant"]


@admin.register(ApiToken)
class ApiTokenAdmin(NoAdd, admin.ModelAdmin):
    """Tokens are made by their users, who alone see the secret; an operator can revoke one or let it expire."""

    list_display = ("name", "prefix", "tenant", "user", "scopes", "expires_at", "last_used_at", "revoked_at")
    list_filter = ["tenant"]
    list_select_related = ["tenant", "user"]
    fields = (*list_display, "created_at")
    readonly_fields = ["name", "prefix", "tenant", "user", "scopes", "last_used_at", "created_at"]
