from django.contrib import admin

from portal.large_tables_admin import RowsOfJobsAdmin
from portal.progress.models import EvaluationRecord, StepRecord


@admin.register(StepRecord)
class StepRecordAdmin(RowsOfJobsAdmin):
    list_display = ["job", "step", "adapter_version", "total_tokens_sampled", "total_accelerator_seconds", "time"]


@admin.register(EvaluationRecord)
class EvaluationRecordAdmin(RowsOfJobsAdmin):
    list_display = ["job", "step", "adapter_version", "accuracy", "reward_mean", "best", "time"]
