"""Tenants, their members, invitations, API tokens, exports; and admins acting as a member.

Invariants: everything a tenant owns hangs off ``Tenant`` by a foreign key; the secret of a token or an invitation is
never stored, only its sha256 (it has 256 bits, so a slow hash would add nothing); a tenant always has an owner once it
had one (``portal.tenants.members``).
"""

import uuid
from pathlib import Path

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone


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
    max_reward_trials_per_day = models.PositiveIntegerField(
        "max reward tests per day", default=500, help_text="Begun from 0:00 to 24:00 UTC."
    )
    require_mfa = models.BooleanField(
        "two-factor sign-in required", default=False, help_text="Members without it set it up before anything else."
    )
    delete_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="An owner asked for deletion; until then it can be undone."
    )
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
    chosen_at = models.DateTimeField(
        null=True,
        editable=False,
        help_text="When the user last switched to the tenant; the latest is where they start.",
    )

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="one_membership_per_tenant")]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant} as {self.role}"

    looks_only = False
    """Set on a request's membership where nothing can be changed: an admin only looks, or the tenant is to be deleted.
    No page offers changes then; the services refuse them by rules of their own."""

    @property
    def can_write(self) -> bool:
        return not self.looks_only and self.role in {Role.OWNER, Role.DEVELOPER}

    @property
    def can_manage(self) -> bool:
        return self.role == Role.OWNER


class Invitation(models.Model):
    """A single-use link that makes whoever owns the e-mail address a member."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField(help_text="In lower case.")
    role = models.CharField(max_length=20, choices=Role, default=Role.DEVELOPER)
    hash = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(help_text="When the link that works now was made.")
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "email"],
                condition=models.Q(accepted_at=None, revoked_at=None),
                name="one_open_invitation_per_address",
            )
        ]

    def __str__(self) -> str:
        return self.email

    @property
    def is_expired(self) -> bool:
        return self.expires_at <= timezone.now()


class Scope(models.TextChoices):
    """What an API token may do; a token never may more than its user."""

    READ = "read", "See everything in the tenant"
    JOBS_WRITE = "jobs:write", "Start, pause, resume, change and cancel jobs"
    DATASETS_WRITE = "datasets:write", "Upload datasets"
    REWARDS_WRITE = "rewards:write", "Create and change reward functions"
    ADAPTERS_READ = "adapters:read", "Download adapters"
    ADMIN = "admin", "All of the above, and manage the tenant: members, tokens, audit log, export, deletion"


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
        verbose_name = "API token"
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}...)"

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()


class TenantExport(models.Model):
    """A zip of everything a tenant owns, made in the background (``portal.tenants.exports``)."""

    class Status(models.TextChoices):
        RUNNING = "running", "In progress"
        READY = "ready", "Ready"
        FAILED = "failed", "Failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="exports")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    status = models.CharField(max_length=10, choices=Status, default=Status.RUNNING)
    plan = models.JSONField(default=list, help_text="Its parts, see portal.tenants.export_parts.")
    parts_done = models.PositiveIntegerField(default=0)
    parts_total = models.PositiveIntegerField(default=0)
    attempt = models.PositiveIntegerField(default=1)
    slice = models.PositiveIntegerField(default=0, help_text="Number of the next stretch of work.")
    writing = models.BooleanField(default=False, help_text="A stretch of work has begun and not ended.")
    touched_at = models.DateTimeField(auto_now=True)
    size_bytes = models.PositiveBigIntegerField(default=0)
    error = models.TextField(blank=True)
    expires_at = models.DateTimeField(null=True, help_text="Then its file is removed.")

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"Export of {self.created_at:%d %b %Y %H:%M}"

    @property
    def path(self) -> Path:
        return Path(settings.MARLAAS_VAR) / "exports" / f"{self.pk.hex}.zip"

    @property
    def is_available(self) -> bool:
        """Its file can be fetched."""
        return self.status == self.Status.READY and self.expires_at is not None and self.expires_at > timezone.now()


class Impersonation(models.Model):
    """An admin acts as a member of a tenant for a while. What is done so is audited as the admin's."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    admin = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    reason = models.TextField()
    read_only = models.BooleanField(default=True)
    started_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-started_at"]

    def __str__(self) -> str:
        return f"{self.admin} as {self.user} in {self.tenant}"
