"""Mails to members about what happens, as each has chosen."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django.urls import reverse

from portal.tenants.models import Membership, Role, Tenant
from portal.webhooks.models import JobScope, Mail, NotificationPreference
from portal.webhooks.wake import wake_deliveries


@dataclass(frozen=True)
class MailText:
    """A mail in plain text."""

    subject: str
    lines: list[str]
    link: str

    def render(self, tenant: Tenant) -> str:
        choose = settings.PUBLIC_URL.rstrip("/") + reverse("webhooks:notifications")
        said = "\n\n".join(self.lines)
        return f"{said}\n\n{self.link}\n\n-- \nYou are a member of {tenant.name}. Choose what you are told: {choose}\n"

    @property
    def one_line_subject(self) -> str:
        """Line ends of names would end a mail's header."""
        return " ".join(f"[MARLaaS] {self.subject}".split())[:300]


def mail_members(
    *,
    tenant: Tenant,
    about: str,
    key: str,
    text: MailText,
    owner_id: int | None = None,
    roles: Collection[str] = Role.values,
) -> None:
    """Put a mail on its way to every member who wants to hear ``about`` this, an event's type; once for each.

    ``owner_id`` is who made the job. Members without an address get none.
    """
    members = Membership.objects.filter(tenant=tenant, role__in=roles, user__is_active=True).exclude(user__email="")
    chosen = {each.user_id: each for each in NotificationPreference.objects.filter(tenant=tenant)}
    mails = [
        Mail(user_id=user_id, tenant=tenant, key=key, subject=text.one_line_subject, body=text.render(tenant))
        for user_id in members.values_list("user_id", flat=True)
        if wants(chosen.get(user_id) or NotificationPreference(), about, is_owner=user_id == owner_id)
    ]
    if mails:
        Mail.objects.bulk_create(mails, ignore_conflicts=True)
        transaction.on_commit(wake_deliveries)


def wants(preference: NotificationPreference, about: str, *, is_owner: bool) -> bool:
    """Whether a member hears of an event of this type. That an endpoint was switched off, everybody asked hears."""
    concerns_them = is_owner or preference.jobs == JobScope.ALL
    match about:
        case "job.succeeded":
            return preference.on_success and concerns_them
        case "job.failed":
            return preference.on_failure and concerns_them
        case "quota.warning" | "quota.reached" | "quota.resumed":
            return preference.on_quota
    return about == "endpoint.disabled"


def get_preference(tenant: Tenant, user_id: int) -> NotificationPreference:
    """The member's own, or the defaults, not saved."""
    found = NotificationPreference.objects.filter(tenant=tenant, user_id=user_id).first()
    return found or NotificationPreference(tenant=tenant, user_id=user_id)


def is_member(tenant_id: uuid.UUID, user_id: int) -> bool:
    return Membership.objects.filter(tenant_id=tenant_id, user_id=user_id, user__is_active=True).exists()
