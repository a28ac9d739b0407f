"""Rollouts in tables made for reading: a projection of a job's ``rollout`` events.

Invariants: a pure function of the events 1..``last_seq`` of the job, so it can be thrown away and made again
(``manage.py rebuild_projections``). A group is named by its job and the seq of its event, an episode by its place in
the group: links to them hold for ever.
"""

from django.db import models
from django.db.models import Q

from portal.jobs.models import Job


class RolloutGroup(models.Model):
    """The episodes that answered one prompt in one step."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="rollout_groups")
    seq = models.PositiveIntegerField(help_text="Of the event.")
    time = models.DateTimeField()
    step = models.PositiveIntegerField(help_text="The step the episodes were drawn for.")
    row = models.PositiveIntegerField(help_text="Line of the dataset file, counted from 0.")
    prompt = models.TextField()
    answer = models.TextField()
    prompt_digest = models.CharField(max_length=32, help_text="The same prompt has the same in every job.")
    size = models.PositiveIntegerField(help_text="Episodes.")
    reward_mean = models.FloatField(null=True, help_text="Empty where there is no episode.")
    errors = models.PositiveIntegerField(default=0, help_text="Episodes whose reward failed.")

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="rollout_group_seq")]
        indexes = [
            models.Index(fields=["job", "step", "seq"]),
            models.Index(fields=["job", "prompt_digest", "seq"]),
            models.Index(fields=["job", "seq"], condition=Q(errors__gt=0), name="rollout_group_with_errors"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} step {self.step} row {self.row}"


class Episode(models.Model):
    """One trajectory; fields as in ``engine.events.Episode``."""

    group = models.ForeignKey(RolloutGroup, on_delete=models.CASCADE, related_name="episodes")
    position = models.PositiveIntegerField(help_text="In the group, from 1.")
    completion = models.TextField()
    reward = models.FloatField()
    parts = models.JSONField()
    reason = models.TextField(blank=True)
    error = models.BooleanField(default=False)
    advantage = models.FloatField()
    tokens = models.PositiveIntegerField()
    truncated = models.BooleanField(default=False)
    adapter_version = models.PositiveIntegerField(help_text="Of the policy that drew it.")

    class Meta:
        ordering = ["group", "position"]
        constraints = [models.UniqueConstraint(fields=["group", "position"], name="episode_position")]

    def __str__(self) -> str:
        return f"{self.group_id} #{self.position}"
