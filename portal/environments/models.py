"""What jobs' environments need of a tenant: documents for the search tool, tokens for remote servers.

Invariants: the rows here say what there is, the content lies in files where the engine looks for it
(``engine.environments.files``), below ``$MARLAAS_VAR/tenants/<tenant id>/``: ``documents/<sha256>.jsonl`` and
``tokens/<name>``. A file is complete before its row exists. A token's value is in its file (mode 0600, sealed)
alone.
"""

import uuid
from pathlib import Path

from django.conf import settings
from django.db import models

from portal.tenants.models import Tenant


class DocumentSet(models.Model):
    """Documents for the search tool: one file of ``{"text": ..., "title": ...}`` lines."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="document_sets")
    name = models.CharField(max_length=100)
    sha256 = models.CharField(max_length=64)
    documents = models.PositiveIntegerField()
    size_bytes = models.PositiveBigIntegerField(help_text="Of the file as stored.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="document_set_name_per_tenant"),
            models.UniqueConstraint(fields=["tenant", "sha256"], name="document_set_content_per_tenant"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> Path:
        return tenant_folder(self.tenant_id) / "documents" / f"{self.sha256}.jsonl"


class EnvironmentToken(models.Model):
    """A secret the engine sends to a remote environment as ``Authorization: Bearer``."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="environment_tokens")
    name = models.CharField(max_length=64)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(help_text="When the value was last replaced.")

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="environment_token_name_per_tenant")]

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> Path:
        return tenant_folder(self.tenant_id) / "tokens" / self.name


def tenant_folder(tenant_id: uuid.UUID) -> Path:
    """Where the engine finds a tenant's files."""
    return Path(settings.MARLAAS_VAR) / "tenants" / tenant_id.hex
