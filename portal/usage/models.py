"""What tenants spent and what they may spend.

Invariants: a ``UsageRecord`` is a projection of its job's events 1..``last_seq``, each counted once; it outlives the
job and the member it names. A quota changes only together with a ``QuotaChange`` that gives the reason. A notice is
given once for each quota, level, period and limit. A job with a ``QuotaHold`` that was not released was paused by the
portal, and by nobody since.
"""

import uuid

from django.conf import settings
from django.db import models

from portal.jobs.models import Job
from portal.tenants.models import Tenant


class QuotaKind(models.TextChoices):
    """Everything a tenant's use of which is measured against a limit, in the order people see it."""

    ACTIVE_JOBS = "active_jobs", "Active jobs"
    QUEUED_JOBS = "queued_jobs", "Queued jobs"
    SAMPLED_TOKENS = "sampled_tokens", "Sampled tokens"
    TRAINED_TOKENS = "trained_tokens", "Trained tokens"
    ACCELERATOR_SECONDS = "accelerator_seconds", "Accelerator-seconds"
    STORAGE_BYTES = "storage_bytes", "Storage"
    REWARD_TRIALS = "reward_trials", "Reward tests today"


class UsageRecord(models.Model):
    """What one job spent on one day (UTC), by when the engine says it happened; or, without a job, the reward trials of
    one member."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="usage_records")
    job = models.ForeignKey(Job, on_delete=models.SET_NULL, null=True, related_name="usage_records")
    job_name = models.CharField(max_length=200)
    member = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+", help_text="Who made the job."
    )
    member_name = models.CharField(max_length=150, blank=True)
    day = models.DateField()
    steps = models.PositiveIntegerField(default=0)
    evaluations = models.PositiveIntegerField(default=0)
    tokens_sampled = models.PositiveBigIntegerField(default=0, help_text="Evaluations included.")
    tokens_trained = models.PositiveBigIntegerField(default=0)
    accelerator_seconds = models.FloatField(default=0.0, help_text="Of trainer and rollout workers.")

    class Meta:
        ordering = ["day", "id"]
        constraints = [models.UniqueConstraint(fields=["job", "day"], name="usage_of_job_and_day")]
        indexes = [models.Index(fields=["tenant", "day"])]

    def __str__(self) -> str:
        return f"{self.job_name} on {self.day}"


class TenantQuotas(models.Model):
    """The limits of a tenant beyond those on ``Tenant``; an empty one does not limit."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, primary_key=True, related_name="quotas")
    max_queued_jobs = models.PositiveIntegerField(null=True, blank=True, help_text="Jobs waiting for a place.")
    max_steps_per_job = models.PositiveIntegerField(null=True, blank=True)
    max_sampled_tokens = models.PositiveBigIntegerField(null=True, blank=True, help_text="In a calendar month (UTC).")
    max_trained_tokens = models.PositiveBigIntegerField(null=True, blank=True, help_text="In a calendar month (UTC).")
    max_accelerator_seconds = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="In a calendar month (UTC)."
    )
    max_storage_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Bytes of datasets, unfinished uploads, documents and adapters."
    )
    max_api_requests_per_minute = models.PositiveIntegerField(
        "max API requests per minute", null=True, blank=True, help_text="Over all API tokens of the tenant."
    )

    class Meta:
        verbose_name = "quotas of a tenant"
        verbose_name_plural = "quotas of tenants"
        ordering = ["tenant__name"]

    def __str__(self) -> str:
        return f"Quotas of {self.tenant}"


class QuotaChange(models.Model):
    """One change of a tenant's quotas: who, what, why. Never changed itself."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="quota_changes")
    changed_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    changed_by_name = models.CharField(max_length=150)
    changed_at = models.DateTimeField(auto_now_add=True)
    reason = models.TextField()
    before = models.JSONField(help_text="Of the limits that changed.")
    after = models.JSONField()

    class Meta:
        ordering = ["-changed_at", "-id"]

    def __str__(self) -> str:
        return f"{self.tenant}, {self.changed_at:%Y-%m-%d %H:%M}"


class QuotaNotice(models.Model):
    """That a tenant came near a limit, or reached it."""

    class Level(models.TextChoices):
        WARNING = "warning", "Warning"
        REACHED = "reached", "Reached"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="quota_notices")
    kind = models.CharField(max_length=30, choices=QuotaKind)
    level = models.CharField(max_length=10, choices=Level)
    period = models.DateField(help_text="First day of the month.")
    used = models.FloatField()
    limit = models.FloatField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "kind", "level", "period", "limit"], name="one_quota_notice")
        ]

    def __str__(self) -> str:
        return f"{self.tenant}: {self.get_kind_display()} {self.level}"


class QuotaHold(models.Model):
    """Why the portal paused a job, and why it let it go on again; gone once somebody pauses or resumes it."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="quota_hold")
    kind = models.CharField(max_length=30, choices=QuotaKind)
    reason = models.TextField()
    next = models.TextField()
    limit = models.FloatField(null=True, help_text="Of the quota when it was used up.")
    created_at = models.DateTimeField(auto_now_add=True)
    released_at = models.DateTimeField(null=True, help_text="When the portal resumed the job.")

    def __str__(self) -> str:
        return f"{self.job}: {self.kind}"
