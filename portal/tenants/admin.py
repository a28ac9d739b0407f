from typing import Any, cast

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.audit.admin import AuditedAdmin, ReasonedAdmin
from portal.errors import ServiceError
from portal.pages.http import add_service_errors
from portal.read_only_admin import NoAdd, ReadOnly
from portal.tenants.forms import InvitationForm
from portal.tenants.invitations import OPERATOR_PERMISSION, invite_as_operator
from portal.tenants.models import ApiToken, Impersonation, Invitation, Membership, Role, Tenant
from portal.tenants.selectors import list_members, list_open_invitations

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
    list_display = ["name", "slug", "more", "weight", "max_active_jobs", "delete_at", "created_at"]
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
            '<a href="{}">Invite</a> · <a href="{}">Quotas</a> · '
            '<a href="{}?tenant__id__exact={}">Jobs</a> · <a href="{}?tenant_id={}">Audit log</a>',
            reverse("admin:tenants_tenant_invite", args=[tenant.pk]),
            reverse("admin:usage_tenantquotas_change", args=[tenant.pk]),
            jobs, tenant.pk, entries, tenant.pk,
        )  # fmt: skip

    def get_urls(self) -> list[URLPattern]:
        invite = path("<path:object_id>/invite/", self.admin_site.admin_view(self.invite), name="tenants_tenant_invite")
        return [invite, *super().get_urls()]

    def response_add(self, request: HttpRequest, obj: Tenant, post_url_continue: str | None = None) -> HttpResponse:
        """A tenant without members can do nothing: its owner is invited next."""
        answer = super().response_add(request, obj, post_url_continue)
        is_alone = "_save" in request.POST and not list_members(obj).exists()
        if is_alone and request.user.has_perm(OPERATOR_PERMISSION):
            return redirect("admin:tenants_tenant_invite", obj.pk)
        return answer

    def invite(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Somebody is invited by the operator. The link is in the answer to the form and nowhere else."""
        tenant = self.get_object(request, object_id)
        if tenant is None or not self.has_view_permission(request, tenant):
            raise Http404("No such tenant.")
        has_owner = list_members(tenant).filter(role=Role.OWNER).exists()
        form = InvitationForm(request.POST or None, initial={"role": Role.DEVELOPER if has_owner else Role.OWNER})
        sent = None
        if request.method == "POST" and form.is_valid():
            self._act_as_admin(request)
            try:
                sent = invite_as_operator(
                    tenant=tenant,
                    user=cast(User, request.user),
                    base_url=request.build_absolute_uri("/"),
                    **form.cleaned_data,
                )
                form = InvitationForm()
            except ServiceError as error:
                add_service_errors(form, error)
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": f"Invite to {tenant.name}",
            "opts": self.opts,
            "tenant": tenant,
            "form": form,
            "sent": sent,
            "has_owner": has_owner,
            "invitations": list_open_invitations(tenant),
        }
        return render(request, "admin/tenants/tenant/invite.html", context, status=400 if form.errors else 200)


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

    list_display = ("name", "prefix", "tenant", "user", "may", "expires_at", "last_used_at", "revoked_at")
    list_filter = ["tenant"]
    list_select_related = ["tenant", "user"]
    fields = (*list_display, "created_at")
    readonly_fields = ["name", "prefix", "tenant", "user", "may", "last_used_at", "created_at"]

    @admin.display(ordering="scopes")
    def may(self, token: ApiToken) -> str:
        return ", ".join(token.scopes)
