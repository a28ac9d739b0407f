"""The engine as the operator sees it: what it said last, what is wanted of it, and the spans of the last hours.

Invariants: ``EngineState`` and ``DrainWish`` have one row; a wish has a revision, and is sent until a report of the
engine shows that revision. ``StageSpan`` only repeats ``JobEvent``, for reading across jobs by time: no projection and
no account rests on it.
"""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from engine.spec import DrainControl, PoolControl
from portal.base_models.models import BaseModel
from portal.jobs.models import Job


class EngineState(models.Model):
    """What the engine said last, and how the events worker is."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    report = models.JSONField(default=dict, help_text="engine.spec.EngineReport; empty before the first one.")
    heard_at = models.DateTimeField(null=True, help_text="When the last report was stored.")
    worker_seen_at = models.DateTimeField(null=True, help_text="Heartbeat of the events worker.")
    events_ingested = models.PositiveBigIntegerField(default=0, help_text="Repeats included.")
    ingested_at = models.DateTimeField(null=True)
    ingest_lag_seconds = models.FloatField(
        null=True, help_text="From the newest event of the last batch to its storage."
    )

    class Meta:
        permissions = [("operate_engine", "Can drain the engine and scale its pools")]

    def __str__(self) -> str:
        return "Engine"


class DrainWish(models.Model):
    """Whether the engine is to take work: ``engine.spec.DrainControl``."""

    ONLY = 1

    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    revision = models.PositiveIntegerField()
    draining = models.BooleanField()
    reason = models.CharField(max_length=300, blank=True, help_text="Shown to tenants whose jobs wait.")
    changed_at = models.DateTimeField()
    changed_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    sent_at = models.DateTimeField(null=True, help_text="Empty: this revision was never sent.")

    class Meta:
        verbose_name = "drain request"

    def __str__(self) -> str:
        return "Drained" if self.draining else "Taking work"

    def to_control(self) -> DrainControl:
        return DrainControl(revision=self.revision, draining=self.draining, reason=self.reason)


class PoolWish(models.Model):
    """How many rollout workers a base model's pool is to have: ``engine.spec.PoolControl``."""

    base_model = models.OneToOneField(BaseModel, on_delete=models.CASCADE, primary_key=True, related_name="pool_wish")
    revision = models.PositiveIntegerField()
    rollout_workers = models.PositiveSmallIntegerField(validators=[MinValueValidator(1), MaxValueValidator(256)])
    changed_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True, help_text="Empty: this revision was never sent.")

    class Meta:
        verbose_name = "pool size request"

    def __str__(self) -> str:
        return f"{self.base_model_id}: {self.rollout_workers}"

    def to_control(self) -> PoolControl:
        return PoolControl(revision=self.revision, rollout_workers=self.rollout_workers)


class StageSpan(models.Model):
    """A measured interval of a stage of one job, kept for some hours."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+")
    seq = models.PositiveIntegerField(help_text="Of the event it repeats.")
    stage = models.CharField(max_length=20)
    worker = models.CharField(max_length=100)
    start = models.DateTimeField()
    end = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="stage_span_event")]
        indexes = [models.Index(fields=["end"])]

    def __str__(self) -> str:
        return f"{self.stage} on {self.worker}"
