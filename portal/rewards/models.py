"""Reward functions and their versions.

Invariant: a version is immutable and its ``spec`` was validated by ``engine.spec.RewardSpec`` when it was made.
"""

import uuid

from django.conf import settings
from django.db import models

from engine.spec import RewardSpec
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
