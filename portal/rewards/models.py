"""Reward functions, their versions, and trials of them.

Invariants: a version is immutable and its ``spec`` was validated by ``engine.spec.RewardSpec`` when it was made; a
trial that has ended never changes.
"""

import uuid

from django.conf import settings
from django.db import models

from engine.spec import RewardSpec
from engine.spec.trial import FINISHED_TRIALS
from portal.tenants.models import Tenant


class RewardFunction(models.Model):
    """A named series of versions."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="reward_functions")
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="reward_function_name_per_tenant")]

    def __str__(self) -> str:
        return self.name


class RewardVersion(models.Model):
    """How an episode is scored."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    reward_function = models.ForeignKey(RewardFunction, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    spec = models.JSONField()
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["reward_function", "number"], name="reward_version_number")]

    def __str__(self) -> str:
        return f"{self.reward_function} v{self.number}"

    @property
    def grader_type(self) -> str:
        return self.spec["grader"]["type"]

    def to_spec(self) -> RewardSpec:
        return RewardSpec.model_validate(self.spec)


class TrialState(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class RewardTrial(models.Model):
    """A reward tested on a few completions, and what came of it. Kept until it expires."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="reward_trials")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    reward_version = models.ForeignKey(
        RewardVersion, on_delete=models.SET_NULL, null=True, related_name="trials", help_text="Empty: never saved."
    )
    spec = models.JSONField(help_text="engine.spec.trial.RewardTrialSpec as sent to the engine.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()

    # Outbox: asked for again until the engine's last report is here.
    sent_at = models.DateTimeField(null=True, blank=True)
    cancel_wanted = models.BooleanField(default=False)

    # What the engine's report with the highest sequence number says.
    sequence = models.BigIntegerField(default=0)
    heard_at = models.DateTimeField(null=True, blank=True)
    state = models.CharField(max_length=20, choices=TrialState, default=TrialState.QUEUED)
    reason = models.TextField(blank=True)
    done = models.PositiveIntegerField(default=0, help_text="Completions scored.")
    scores = models.JSONField(default=list, help_text="[case][completion] of engine.spec.trial.TrialScore.")
    sampled_tokens = models.PositiveIntegerField(default=0)
    accelerator_seconds = models.FloatField(default=0.0)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            models.Index(fields=["tenant", "-created_at"], name="reward_trial_of_tenant"),
            models.Index(fields=["state", "sent_at"], name="reward_trial_outbox"),
            models.Index(fields=["expires_at"], name="reward_trial_expiry"),
        ]

    def __str__(self) -> str:
        return f"Test of {self.reward_version or 'an unsaved reward'}"

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED_TRIALS

    @property
    def total(self) -> int:
        """Completions it scores in all."""
        sampling = self.spec["sampling"]
        return sum(len(case["completions"]) or sampling["samples"] for case in self.spec["cases"])
