"""What the API remembers of requests."""

from __future__ import annotations

from django.db import models

from portal.tenants.models import Tenant


class IdempotencyKey(models.Model):
    """A key a writing request came with, and how it was answered.

    Invariant: it is stored before the request is carried out, so no two requests with one key ever are; and it is kept
    where the answer was never stored, because then nobody knows what was done.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    request_sha256 = models.CharField(max_length=64, help_text="Of who sent what where.")
    created_at = models.DateTimeField(auto_now_add=True)
    status = models.PositiveSmallIntegerField(null=True, help_text="Of the answer; empty while there is none.")
    body = models.JSONField(null=True, help_text="Of the answer; empty where it held a secret.")
    secret = models.BooleanField(default=False, help_text="The answer held a secret, which is not stored.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="idempotency_key_per_tenant")]
        indexes = [models.Index(fields=["tenant", "created_at"])]

    def __str__(self) -> str:
        return self.key
