from django.contrib import admin

from portal.progress.models import EvaluationRecord, StepRecord
from portal.read_only_admin import ReadOnly


@admin.register(StepRecord)
class StepRecordAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["job", "step", "adapter_version", "total_tokens_sampled", "total_accelerator_seconds", "time"]
    list_select_related = ["job"]
    search_fields = ["job__id"]


@admin.register(EvaluationRecord)
class EvaluationRecordAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["job", "step", "adapter_version", "accuracy", "reward_mean", "best", "time"]
    list_select_related = ["job"]
    search_fields = ["job__id"]
