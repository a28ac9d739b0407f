"""Datasets and their versions.

Invariants: a version is immutable; its file is named by the sha256 of its bytes, so it never changes either.
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
