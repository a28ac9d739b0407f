from django.contrib import admin

from portal.audit.admin import AuditedAdmin
from portal.datasets.models import Dataset, DatasetUpload, DatasetVersion
from portal.read_only_admin import ReadOnly, ReadOnlyInline


class DatasetVersionInline(ReadOnlyInline):
    model = DatasetVersion
    fields = ["number", "rows", "train_rows", "held_out_rows", "size_bytes", "sha256", "created_at"]


@admin.register(Dataset)
class DatasetAdmin(ReadOnly, AuditedAdmin):
    list_display = ["name", "tenant", "created_at"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
    search_fields = ["name"]
    inlines = [DatasetVersionInline]


@admin.register(DatasetVersion)
class DatasetVersionAdmin(ReadOnly, AuditedAdmin):
    list_display = ["dataset", "number", "rows", "train_rows", "held_out_rows", "created_at"]
    list_filter = ["dataset__tenant"]
    list_select_related = ["dataset"]


@admin.register(DatasetUpload)
class DatasetUploadAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["name", "tenant", "file_name", "complete", "created_at", "expires_at"]
    list_filter = ["tenant"]
    list_select_related = ["tenant"]
