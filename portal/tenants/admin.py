from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.audit.admin import AuditedAdmin, ReasonedAdmin
from portal.read_only_admin import NoAdd, ReadOnly
from portal.tenants.models import ApiToken, Impersonation, Invitation, Membership, Tenant

# Admins sign in as everybody does: with lock-out after failed attempts, and a second factor where they have one.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]
admin.site.unregister([User, Group])


@admin.register(User)
class AuditedUserAdmin(AuditedAdmin, UserAdmin):
    pass


@admin.register(Group)
class AuditedGroupAdmin(AuditedAdmin, GroupAdmin):
    pass


class MembershipInline(admin.TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ["user"]


@admin.register(Tenant)
class TenantAdmin(ReasonedAdmin):
    list_display = ["name", "slug", "weight", "max_active_jobs", "max_dataset_bytes", "delete_at", "created_at", "more"]
    search_fields = ["name", "slug"]
    prepopulated_fields = {"slug": ["name"]}
    inlines = [MembershipInline]

    def get_readonly_fields(self, request, obj=None):
        """Limits of a tenant that exists are changed on the page of its quotas, with a reason."""
        limits = ["max_active_jobs", "max_dataset_bytes", "max_dataset_rows", "max_reward_trials_per_day"]
        return limits if obj is not None else []

    @admin.display(description="More")
    def more(self, tenant: Tenant) -> SafeString:
        """Where else something of the tenant stands."""
        jobs, entries = reverse("admin:jobs_job_changelist"), reverse("admin:audit_auditentry_changelist")
        return format_html(
            '<a href="{}?tenant__id__exact={}">Jobs</a> · <a href="{}?q={}">Audit log</a>',
            jobs, tenant.pk, entries, tenant.name,
        )  # fmt: skip


@admin.register(Membership)
class MembershipAdmin(AuditedAdmin):
    list_display = ["user", "tenant", "role", "created_at", "act_as"]
    list_filter = ["role", "tenant"]
    list_select_related = ["user", "tenant"]
    search_fields = ["user__username", "user__email", "tenant__name"]
    autocomplete_fields = ["user", "tenant"]

    @admin.display(description="Act as")
    def act_as(self, membership: Membership) -> SafeString:
        address = reverse("tenants:impersonation-start", args=[membership.pk])
        return format_html('<a href="{}">See what {} sees</a>', address, membership.user.get_username())


@admin.register(Invitation)
class InvitationAdmin(ReadOnly, AuditedAdmin):
    list_display = ["email", "tenant", "role", "sent_at", "expires_at", "accepted_at", "revoked_at"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
    search_fields = ["email"]


@admin.register(Impersonation)
class ImpersonationAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["admin", "user", "tenant", "reason", "read_only", "started_at", "expires_at", "ended_at"]
    list_filter = ["tenant"]
    list_select_related = ["admin", "user", "tenant"]

    def has_delete_permission(self, request: object, obj: Impersonation | None = None) -> bool:
        return False


@admin.register(ApiToken)
class ApiTokenAdmin(NoAdd, AuditedAdmin):
    """Tokens are made by their users, who alone see the secret; an operator can revoke one or let it expire."""

    list_display = ("name", "prefix", "tenant", "user", "scopes", "expires_at", "last_used_at", "revoked_at")
    list_filter = ["tenant"]
    list_select_related = ["tenant", "user"]
    fields = (*list_display, "created_at")
    readonly_fields = ["name", "prefix", "tenant", "user", "scopes", "last_used_at", "created_at"]
