from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.audit.admin import ReasonedAdmin
from portal.base_models.models import BaseModel


@admin.register(BaseModel)
class BaseModelAdmin(ReasonedAdmin):
    list_display = ["id", "source", "location", "context_length", "max_lora_rank", "dtype", "enabled", "pool"]
    list_filter = ["enabled", "source"]

    @admin.display(description="Pool")
    def pool(self, model: BaseModel) -> SafeString:
        address = reverse("engine_room:scale", args=[model.pk])
        jobs = reverse("admin:jobs_job_changelist")
        return format_html(
            '<a href="{}">Scale</a> · <a href="{}?base_model__id__exact={}">Jobs</a>', address, jobs, model.pk
        )

    def get_readonly_fields(self, request: HttpRequest, obj: BaseModel | None = None) -> list[str]:
        """The id names the model for good: changing a primary key would make a second one."""
        return ["id"] if obj else []
