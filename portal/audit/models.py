"""The audit log: who changed what, from what to what.

Invariants: an entry is written in the transaction of the change it tells of, so neither exists without the other; it
is never changed nor deleted by the portal; it names tenant, actor and object by id and label instead of by foreign
key, so it outlives all three.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, NoReturn

from django.db import models

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class ActorKind(models.TextChoices):
    USER = "user", "Member"
    TOKEN = "token", "API token"
    ADMIN = "admin", "Admin"
    SYSTEM = "system", "System"


class AppendOnlyError(Exception):
    """Somebody tried to change or delete an entry of the audit log."""


class AppendOnlyQuerySet(models.QuerySet["AuditEntry"]):
    """Adds and reads."""

    def update(self, **kwargs: Any) -> NoReturn:
        raise AppendOnlyError("The audit log is append-only.")

    def delete(self) -> NoReturn:
        raise AppendOnlyError("The audit log is append-only.")

    def bulk_update(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnlyError("The audit log is append-only.")


class AuditEntry(models.Model):
    """One change."""

    time = models.DateTimeField(auto_now_add=True)
    tenant_id = models.UUIDField(null=True, help_text="Empty: a change to the installation.")
    tenant_name = models.CharField(max_length=200, blank=True)
    actor_kind = models.CharField(max_length=10, choices=ActorKind)
    actor_id = models.CharField(max_length=64, blank=True, help_text="Of the user; empty for the system.")
    actor_label = models.CharField(max_length=300)
    on_behalf_of = models.CharField(max_length=300, blank=True, help_text="The user an admin acted as.")
    action = models.CharField(max_length=60, help_text="noun.verb, e.g. job.cancelled")
    object_type = models.CharField(max_length=60)
    object_id = models.CharField(max_length=64, blank=True)
    object_label = models.CharField(max_length=300)
    before = models.JSONField(default=dict, help_text="Of the fields that changed; secrets masked.")
    after = models.JSONField(default=dict)
    reason = models.TextField(blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    address = models.GenericIPAddressField(null=True)

    objects = AppendOnlyQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["tenant_id", "-id"], name="audit_tenant"),
            models.Index(fields=["tenant_id", "action", "-id"], name="audit_tenant_action"),
            models.Index(fields=["tenant_id", "time"], name="audit_tenant_time"),
            models.Index(fields=["object_id", "-id"], name="audit_object"),
        ]

    def __str__(self) -> str:
        return f"{self.actor_label}: {self.action} {self.object_label}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.pk is not None:
            raise AppendOnlyError("The audit log is append-only.")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnlyError("The audit log is append-only.")

    @property
    def changes(self) -> list[tuple[str, str | None, str | None]]:
        """``(field, before, after)`` for people; None where the field was or is not there, or empty."""
        names = dict.fromkeys([*self.before, *self.after])
        return [(name.replace("_", " "), _words(self.before.get(name)), _words(self.after.get(name))) for name in names]


def _words(value: Any) -> str | None:
    match value:
        case None | "":
            return None
        case bool():
            return "yes" if value else "no"
        case list():
            are_phrases = any(" " in str(item) for item in value)
            return ("\n" if are_phrases else ", ").join(map(str, value))
        case dict():
            return json.dumps(value, ensure_ascii=False)
        case str() if MOMENT.fullmatch(value):
            return f"{datetime.fromisoformat(value).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return str(value)
