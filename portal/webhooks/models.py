"""Webhook endpoints, messages on their way out (webhooks and mails), and what members want to be told.

Invariants: what happens and the message about it are written in one transaction, so none is lost or made up; a message
keeps its id and its body through every attempt, so that a receiver can drop repeats; an attempt is claimed before it
is made, so no two workers make it at once. A secret is stored, sealed, because signing needs it; it is shown once.
"""

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.utils import timezone

from portal.sealing import get_sealer
from portal.tenants.models import Tenant


class EventType(models.TextChoices):
    """What a webhook can tell of."""

    JOB_STARTED = "job.started", "A job started"
    JOB_SUCCEEDED = "job.succeeded", "A job succeeded"
    JOB_FAILED = "job.failed", "A job failed"
    JOB_CANCELLED = "job.cancelled", "A job was cancelled"
    ADAPTER_PUBLISHED = "adapter.published", "A job's final adapter is ready"
    QUOTA_WARNING = "quota.warning", "80 % of a quota is used"
    QUOTA_REACHED = "quota.reached", "A quota is used up"
    QUOTA_RESUMED = "quota.resumed", "A quota has room again and its jobs go on"


PING = "ping"
"""Sent by the test button, whatever the endpoint's events."""


class Endpoint(models.Model):
    """An address of a tenant that is told of events."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="webhook_endpoints")
    url = models.CharField(max_length=2000)
    description = models.CharField(max_length=200, blank=True)
    events = models.JSONField(default=list)
    secret = models.TextField(help_text="Sealed.")
    old_secret = models.TextField(blank=True, help_text="Sealed. Signs too until old_secret_until.")
    old_secret_until = models.DateTimeField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    disabled_reason = models.TextField(blank=True)
    failing_since = models.DateTimeField(null=True, blank=True, help_text="First failure since the last success.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["created_at"]

    def __str__(self) -> str:
        return self.url

    @property
    def event_labels(self) -> list[str]:
        return [str(EventType(name).label) for name in EventType.values if name in self.events]

    def signing_secrets(self, now: datetime) -> list[str]:
        """The current one, and the one before while its time lasts, in clear. Raises CannotOpen."""
        is_old_valid = self.old_secret and self.old_secret_until and now < self.old_secret_until
        kept = [self.secret, self.old_secret] if is_old_valid else [self.secret]
        return [get_sealer().open(each) for each in kept]


class State(models.TextChoices):
    PENDING = "pending", "Waiting"
    DELIVERED = "delivered", "Delivered"
    FAILED = "failed", "Failed"


class Outgoing(models.Model):
    """A message on its way out, tried again until it arrives or the tries are used up."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    created_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    tries = models.PositiveSmallIntegerField(default=0, help_text="Since it was last put on its way.")
    next_attempt_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class Delivery(Outgoing):
    """One message to one endpoint."""

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="deliveries")
    event_type = models.CharField(max_length=30)
    key = models.CharField(max_length=100, help_text="Names what happened; an endpoint hears of it once.")
    body = models.TextField(help_text="JSON, as it is signed and sent.")

    class Meta:
        ordering = ["-created_at"]
        verbose_name_plural = "deliveries"
        constraints = [models.UniqueConstraint(fields=["endpoint", "key"], name="one_delivery_of_an_occurrence")]
        indexes = [
            models.Index(fields=["endpoint", "-created_at"]),
            models.Index(fields=["next_attempt_at"], condition=models.Q(state="pending"), name="delivery_due"),
            models.Index(fields=["-created_at", "-id"], name="delivery_newest"),
            models.Index(fields=["finished_at"], name="delivery_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} to {self.endpoint_id}"

    @property
    def message_id(self) -> str:
        """The ``webhook-id`` of every attempt."""
        return f"msg_{self.pk.hex}"


class Attempt(models.Model):
    """One try to deliver a message to an endpoint, and what came of it."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="attempts")
    at = models.DateTimeField()
    duration_ms = models.PositiveIntegerField()
    status_code = models.PositiveSmallIntegerField(null=True, help_text="Of the answer; none where none came.")
    excerpt = models.TextField(blank=True, help_text="The beginning of the answer.")
    error = models.TextField(blank=True, help_text="Why it failed; empty where it did not.")

    class Meta:
        ordering = ["at", "id"]

    def __str__(self) -> str:
        return f"{self.delivery_id} at {self.at:%Y-%m-%d %H:%M:%S}"


class Mail(Outgoing):
    """One e-mail to one member."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="mails")
    key = models.CharField(max_length=100, help_text="Names what happened; a member hears of it once.")
    subject = models.CharField(max_length=300)
    body = models.TextField()
    error = models.TextField(blank=True, help_text="Of the last try.")

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_mail_of_an_occurrence")]
        indexes = [
            models.Index(fields=["next_attempt_at"], condition=models.Q(state="pending"), name="mail_due"),
            models.Index(fields=["-created_at", "-id"], name="mail_newest"),
            models.Index(fields=["finished_at"], name="mail_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.subject} to {self.user_id}"


class JobScope(models.TextChoices):
    OWN = "own", "The jobs I start"
    ALL = "all", "Every job of the tenant"


class NotificationPreference(models.Model):
    """What one member wants to be told by e-mail. Without a row the defaults hold."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="notification_preferences")
    jobs = models.CharField(max_length=10, choices=JobScope, default=JobScope.OWN)
    on_success = models.BooleanField(default=False)
    on_failure = models.BooleanField(default=True)
    on_quota = models.BooleanField(default=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="notification_preference_of_member")]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.tenant_id}"
