from django.contrib import admin

from portal.read_only_admin import ReadOnly
from portal.rollouts.models import RolloutGroup


@admin.register(RolloutGroup)
class RolloutGroupAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["job", "step", "row", "size", "reward_mean", "errors", "time"]
    list_select_related = ["job"]
    search_fields = ["job__id"]
    show_full_result_count = False
