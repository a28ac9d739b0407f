from django.contrib import admin

from portal.large_tables_admin import RowsOfJobsAdmin
from portal.rollouts.models import RolloutGroup


@admin.register(RolloutGroup)
class RolloutGroupAdmin(RowsOfJobsAdmin):
    list_display = ["job", "step", "row", "size", "reward_mean", "errors", "time"]
