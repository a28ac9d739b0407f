"""Tenants, their members and their API tokens.

Invariants: everything a tenant owns hangs off ``Tenant`` by a foreign key; a token's secret is never stored, only its
sha256 (the secret has 256 bits, so a slow hash would add nothing).
"""

import uuid

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models


class Tenant(models.Model):
    """An organisation; owns datasets, rewards, jobs and adapters."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=200)
    slug = models.SlugField(unique=True)
    weight = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(0.001), MaxValueValidator(1000)],
        help_text="Share of rollout and trainer relative to other tenants.",
    )
    max_active_jobs = models.PositiveIntegerField(
        default=4, help_text="Jobs queued, preparing or running at once; paused ones do not count."
    )
    max_dataset_bytes = models.PositiveBigIntegerField(default=100 * 1024 * 1024, help_text="Size of one upload.")
    max_dataset_rows = models.PositiveIntegerField(default=100_000, help_text="Rows of one dataset version.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    OWNER = "owner", "Owner"
    DEVELOPER = "developer", "Developer"
    VIEWER = "viewer", "Viewer"


class Membership(models.Model):
    """A user's role in a tenant: owners manage it, developers write, viewers read."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=20, choices=Role, default=Role.DEVELOPER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="one_membership_per_tenant")]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant} as {self.role}"

    @property
    def can_write(self) -> bool:
        return self.role in {Role.OWNER, Role.DEVELOPER}

    @property
    def can_manage(self) -> bool:
        return self.role == Role.OWNER


class Scope(models.TextChoices):
    READ = "read", "Read"
    WRITE = "write", "Write"


class ApiToken(models.Model):
    """A key to the REST API. Acts for one user in one tenant and dies with that membership."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_tokens")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16, help_text="First characters, to tell tokens apart.")
    hash = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}...)"
