"""Adapter versions: a projection of the engine's ``adapter`` and ``adapter_removed`` events.

Invariants: content is immutable; a name is never used twice; the tenant is the job's, and never changes.
"""

import uuid

from django.db import models

from portal.jobs.models import Job
from portal.tenants.models import Tenant


class AdapterVersion(models.Model):
    """One committed adapter of a job, in the engine's store."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="adapter_versions")
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        related_name="adapter_versions",
        db_index=False,
        help_text="The job's: lists of a tenant's versions follow an index instead of looking at all its jobs.",
    )
    version = models.PositiveIntegerField()
    name = models.CharField(max_length=100, unique=True)
    path = models.CharField(max_length=1000, help_text="Folder on disk, as the engine reported it.")
    sha256 = models.CharField(max_length=64, help_text="Of adapter_model.safetensors.")
    size_bytes = models.PositiveBigIntegerField()
    rank = models.PositiveIntegerField()
    step = models.PositiveIntegerField()
    final = models.BooleanField(default=False, help_text="The job's result.")
    removed = models.BooleanField(default=False, help_text="Retention removed its files.")
    created_at = models.DateTimeField(help_text="When the engine published it.")

    class Meta:
        ordering = ["-version"]
        constraints = [models.UniqueConstraint(fields=["job", "version"], name="adapter_version_of_job")]
        indexes = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="adapter_newest_of_tenant"),
            models.Index(fields=["-created_at", "-id"], name="adapter_newest"),
            # The page's list, results first; with the size, so that a tenant's storage is added up from it alone.
            models.Index(
                fields=["tenant", "-final", "-created_at", "size_bytes", "removed"],
                condition=models.Q(removed=False),
                name="adapter_kept_of_tenant",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def can_be_continued(self) -> bool:
        """A job can start from it: its files are there, and it has learnt something (version 0 is untrained)."""
        return not self.removed and self.version > 0
