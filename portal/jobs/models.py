"""Jobs and their events.

Invariants: ``JobEvent`` is the truth and append-only; everything of ``Job`` under "projection" is what the events
1..``last_seq`` say, applied in order. ``last_seq`` is the highest seq below which no event is missing; readers see no
event above it, so a reader's cursor never skips one that comes late. What the tenant wants of a job is kept as a whole
with a revision; the engine goes by it once ``applied_revision`` has reached ``control_revision``.
"""

import uuid
from typing import Any

from django.conf import settings
from django.db import models

from engine.events import TERMINAL_STATUSES
from engine.spec import JobControl, JobSpec
from portal.base_models.models import BaseModel
from portal.datasets.models import DatasetVersion
from portal.jobs.transitions import CANCELLING, PAUSING, RESUMING, Transition
from portal.rewards.models import RewardVersion
from portal.tenants.models import Tenant


class Status(models.TextChoices):
    QUEUED = "queued", "Queued"
    PREPARING = "preparing", "Preparing"
    RUNNING = "running", "Running"
    PAUSED = "paused", "Paused"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


OPEN_STATUSES = tuple(status for status in Status.values if status not in TERMINAL_STATUSES)
"""Those of jobs that have not ended. Look for these, not for all but the terminal ones: only so an index finds them."""


class Job(models.Model):
    """One fine-tuning run of one tenant."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="jobs")
    name = models.CharField(max_length=200)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="jobs")
    dataset_version = models.ForeignKey(
        DatasetVersion,
        on_delete=models.RESTRICT,
        null=True,
        blank=True,
        related_name="jobs",
        help_text="Empty: the environment makes the job's rows.",
    )
    reward_version = models.ForeignKey(RewardVersion, on_delete=models.RESTRICT, related_name="jobs")
    start_from = models.ForeignKey(
        "adapters.AdapterVersion", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    spec = models.JSONField(help_text="engine.spec.JobSpec as sent to the engine.")
    created_at = models.DateTimeField(auto_now_add=True)
    idempotency_key = models.CharField(max_length=200, blank=True)
    request_sha256 = models.CharField(max_length=64, blank=True, help_text="Of the request with the idempotency key.")

    # What the tenant wants: engine.spec.JobControl.
    control_revision = models.PositiveIntegerField(default=0, help_text="Counts the changes; 0 as submitted.")
    wants_paused = models.BooleanField(default=False)
    wants_cancelled = models.BooleanField(default=False)
    wanted_priority = models.SmallIntegerField(default=0)
    wanted_steps = models.PositiveIntegerField(help_text="In all.")

    # Outbox: a command is sent again until the engine's events show that it arrived.
    submit_sent_at = models.DateTimeField(null=True, blank=True)
    control_sent_at = models.DateTimeField(null=True, blank=True, help_text="Empty: this revision was never sent.")

    # Projection of the events 1..last_seq.
    last_seq = models.PositiveIntegerField(default=0)
    status = models.CharField(max_length=20, choices=Status, default=Status.QUEUED)
    reason = models.TextField(blank=True)
    next = models.TextField(blank=True)
    step = models.PositiveIntegerField(default=0)
    steps = models.PositiveIntegerField()
    priority = models.SmallIntegerField(default=0)
    applied_revision = models.PositiveIntegerField(default=0, help_text="Of the control the engine goes by.")
    metrics = models.JSONField(default=dict, help_text="Of the last committed step.")
    base_accuracy = models.FloatField(null=True, blank=True, help_text="Held-out, before training.")
    accuracy = models.FloatField(
        null=True,
        blank=True,
        help_text="Held-out, of the job's result: its best adapter version so far, or the last one where its settings "
        "ask for that.",
    )
    last_accuracy = models.FloatField(
        null=True, blank=True, help_text="Held-out, of the last adapter version evaluated."
    )
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [
            # In the orders the lists are read in, so that a page costs the same with 10,000 jobs.
            models.Index(fields=["tenant", "-created_at", "-id"], name="job_newest_of_tenant"),
            models.Index(fields=["tenant", "status", "-created_at", "-id"], name="job_newest_of_status"),
            models.Index(fields=["tenant", "status", "-finished_at"], name="job_last_finished"),
            # Over all tenants: for what looks every few seconds at the jobs that have not ended, and for operators.
            models.Index(fields=["status", "created_at"], name="job_by_status"),
            models.Index(fields=["-created_at", "-id"], name="job_newest"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "idempotency_key"],
                condition=~models.Q(idempotency_key=""),
                name="job_idempotency_key_per_tenant",
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def rows_from(self) -> str:
        """Where the job's rows come from, for people: a dataset version or a generator."""
        return str(self.dataset_version or f"reasoning-gym {self.spec['environment']['dataset']}")

    @property
    def is_finished(self) -> bool:
        return self.status in TERMINAL_STATUSES

    @property
    def transition(self) -> Transition | None:
        """What the tenant has asked for and the engine has not reported yet."""
        if self.is_finished:
            return None
        if self.wants_cancelled:
            return CANCELLING
        if self.wants_paused and self.status != Status.PAUSED:
            return PAUSING
        # One that stays paused although the engine knows what the tenant wants is held by the operator, and says so.
        if self.status == Status.PAUSED and not self.wants_paused and self.is_control_pending:
            return RESUMING
        return None

    @property
    def hold(self) -> Any:
        """The ``QuotaHold`` for which the portal paused the job; None where it did not."""
        stays_paused = self.wants_paused and not self.wants_cancelled and not self.is_finished
        hold = getattr(self, "quota_hold", None) if stays_paused else None
        return hold if hold is not None and hold.released_at is None else None

    @property
    def _told_by_quota(self) -> Any:
        """The ``QuotaHold`` whose words say why the job is in its state: it holds it, or has just let it go."""
        if self.hold is not None:
            return self.hold
        return getattr(self, "quota_hold", None) if self.transition is RESUMING else None

    @property
    def state_label(self) -> str:
        return self.transition.label if self.transition else str(self.get_status_display())

    @property
    def state_reason(self) -> str:
        """Why the job is in its state, for people."""
        if (hold := self._told_by_quota) is not None:
            return str(hold.reason)
        return self.transition.reason if self.transition else self.reason

    @property
    def state_next(self) -> str:
        """What happens next, for people."""
        if (hold := self._told_by_quota) is not None:
            return str(hold.next)
        return self.transition.next if self.transition else self.next

    @property
    def is_control_pending(self) -> bool:
        """The engine does not yet go by the tenant's last change."""
        return self.control_revision > self.applied_revision and not self.is_finished

    @property
    def gave_up_its_place(self) -> bool:
        """Paused and meant to stay so: it holds nothing in rollout and trainer."""
        return self.status == Status.PAUSED and self.wants_paused

    def to_control(self) -> JobControl:
        """What the tenant wants, once there was a first change."""
        return JobControl(
            revision=self.control_revision,
            paused=self.wants_paused and not self.wants_cancelled,  # a paused job is woken to be ended
            cancelled=self.wants_cancelled,
            priority=self.wanted_priority,
            steps=self.wanted_steps,
            reason=self.hold.reason if self.hold is not None else "",
        )

    def to_spec(self) -> JobSpec:
        return JobSpec.model_validate(self.spec)


class JobEvent(models.Model):
    """One event of one job as the engine reported it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    type = models.CharField(max_length=20)
    time = models.DateTimeField()
    payload = models.JSONField()

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="job_event_seq")]
        indexes = [models.Index(fields=["job", "type", "seq"])]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.seq} {self.type}"
