"""What was measured of a job, step by step: a projection of its ``step`` and ``evaluation`` events.

Invariant: a pure function of the events 1..``last_seq`` of the job, so it can be thrown away and made again
(``manage.py rebuild_projections``). Totals are kept with each step, so that no reader adds up a whole job.
"""

from django.db import models

from portal.jobs.models import Job


class StepRecord(models.Model):
    """One committed step: its metrics, and what the job had spent on its steps so far."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="step_records")
    seq = models.PositiveIntegerField(help_text="Of the event.")
    step = models.PositiveIntegerField()
    adapter_version = models.PositiveIntegerField()
    time = models.DateTimeField()
    metrics = models.JSONField(help_text="As in engine.events.StepCommitted.")
    total_tokens_sampled = models.FloatField(default=0)
    total_tokens_trained = models.FloatField(default=0)
    total_accelerator_seconds = models.FloatField(default=0)
    total_reward_errors = models.FloatField(default=0)

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="step_record_seq")]
        indexes = [
            models.Index(fields=["job", "step"]),
            models.Index(fields=["job", "adapter_version"]),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} step {self.step}"


class EvaluationRecord(models.Model):
    """One held-out evaluation, of an adapter version or (None) of the base model."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="evaluation_records")
    seq = models.PositiveIntegerField(help_text="Of the event.")
    step = models.PositiveIntegerField()
    adapter_version = models.PositiveIntegerField(null=True)
    time = models.DateTimeField()
    rows = models.PositiveIntegerField()
    accuracy = models.FloatField()
    reward_mean = models.FloatField()
    best = models.BooleanField(default=False, help_text="No version evaluated before was better.")

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="evaluation_record_seq")]
        indexes = [models.Index(fields=["job", "adapter_version"])]

    def __str__(self) -> str:
        return f"{self.job_id} evaluation at step {self.step}"
