from django.contrib import admin

from portal.audit.admin import AuditedAdmin
from portal.read_only_admin import ReadOnly, ReadOnlyInline
from portal.rewards.models import RewardFunction, RewardTrial, RewardVersion


class RewardVersionInline(ReadOnlyInline):
    model = RewardVersion
    fields = ["number", "grader_type", "created_at"]


@admin.register(RewardFunction)
class RewardFunctionAdmin(ReadOnly, AuditedAdmin):
    list_display = ["name", "tenant", "created_at"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
    search_fields = ["name"]
    inlines = [RewardVersionInline]


@admin.register(RewardVersion)
class RewardVersionAdmin(ReadOnly, AuditedAdmin):
    list_display = ["reward_function", "number", "grader_type", "created_at"]
    list_filter = ["reward_function__tenant"]
    list_select_related = ["reward_function"]


@admin.register(RewardTrial)
class RewardTrialAdmin(ReadOnly, AuditedAdmin):
    list_display = ["id", "tenant", "reward_version", "state", "created_at"]
    list_filter = ["state", "tenant"]
    list_select_related = ["tenant", "reward_version__reward_function"]
    exclude = ["spec", "scores"]
