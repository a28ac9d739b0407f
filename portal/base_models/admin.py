from django.contrib import admin
from django.http import HttpRequest

from portal.audit.admin import AuditedAdmin
from portal.base_models.models import BaseModel


@admin.register(BaseModel)
class BaseModelAdmin(AuditedAdmin):
    list_display = ["id", "source", "location", "context_length", "max_lora_rank", "dtype", "enabled"]
    list_filter = ["enabled", "source"]

    def get_readonly_fields(self, request: HttpRequest, obj: BaseModel | None = None) -> list[str]:
        """The id names the model for good: changing a primary key would make a second one."""
        return ["id"] if obj else []
