"""Datasets and their versions.

Invariants: a version is immutable; its file is named by the sha256 of its bytes, so it never changes either. What was
sent stays a draft (``DatasetUpload``) until it has become a version or its day has passed: nothing sent is lost to a
fault in it.
"""

import uuid
from pathlib import Path

from django.conf import settings
from django.db import models

from engine.spec import DatasetRef
from portal.tenants.models import Tenant


class Dataset(models.Model):
    """A named series of versions."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True, help_text="Out of the lists since; jobs keep it.")

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="dataset_name_per_tenant")]

    def __str__(self) -> str:
        return self.name


class DatasetVersion(models.Model):
    """Rows at rest: one file of ``engine.spec.DatasetRow`` lines."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64)
    rows = models.PositiveIntegerField()
    train_rows = models.PositiveIntegerField()
    held_out_rows = models.PositiveIntegerField()
    size_bytes = models.PositiveBigIntegerField(help_text="Of the file as stored.")
    origin = models.JSONField(
        default=dict, blank=True, help_text="How it came about: file, format, mapping, split, repeats, rows left out."
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["dataset", "number"], name="dataset_version_number")]

    def __str__(self) -> str:
        return f"{self.dataset} v{self.number}"

    @property
    def path(self) -> Path:
        return Path(settings.MARLAAS_VAR) / "datasets" / f"{self.sha256}.jsonl"

    def to_ref(self) -> DatasetRef:
        return DatasetRef(
            path=str(self.path), sha256=self.sha256, train_rows=self.train_rows, held_out_rows=self.held_out_rows
        )


class DatasetUpload(models.Model):
    """Bytes on their way to become a dataset version: received in pieces, mapped, checked, stored or forgotten."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="dataset_uploads")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    name = models.CharField(max_length=100, help_text="Of the dataset that gets the version.")
    file_name = models.CharField(max_length=200, blank=True)
    format = models.CharField(max_length=10, blank=True, help_text="Empty: found out from the content.")
    complete = models.BooleanField(default=False, help_text="All bytes have come.")
    size_bytes = models.PositiveBigIntegerField(default=0, help_text="Of its files; counts as storage.")
    reserved_bytes = models.PositiveBigIntegerField(
        default=0, help_text="Of storage, for the piece that is being received."
    )
    report = models.JSONField(default=dict, blank=True, help_text="What the last check found.")
    version = models.ForeignKey(DatasetVersion, on_delete=models.CASCADE, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"Upload of {self.name}"

    @property
    def folder(self) -> Path:
        return Path(settings.MARLAAS_VAR) / "uploads" / self.tenant_id.hex / self.pk.hex

    @property
    def data_path(self) -> Path:
        return self.folder / "data"

    @property
    def held_out_path(self) -> Path:
        """The rows to hold out where they were sent as a file of their own."""
        return self.folder / "held_out"

    @property
    def errors_path(self) -> Path:
        """All faults of the last check, as CSV."""
        return self.folder / "errors.csv"
