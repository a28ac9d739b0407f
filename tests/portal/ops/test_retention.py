"""What is long over goes after the time the README says, and nothing before."""

from __future__ import annotations

import os
import uuid
from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.sessions.models import Session
from django.utils import timezone

from portal.api.models import IdempotencyKey
from portal.ops import retention
from portal.ops.retention import remove_expired
from portal.ops.tasks import remove_expired as remove_expired_task
from portal.tenants.models import ApiToken, Invitation, TenantExport
from portal.webhooks.models import Delivery, Endpoint

DAY = timedelta(days=1)


def make_key(owned, when):
    row = IdempotencyKey.objects.create(tenant=owned.tenant, key=uuid.uuid4().hex, request_sha256="0" * 64)
    IdempotencyKey.objects.filter(pk=row.pk).update(created_at=when)
    return row


def make_invitation(owned, when, **ended):
    return Invitation.objects.create(
        tenant=owned.tenant,
        email=f"{uuid.uuid4().hex}@example.org",
        hash=uuid.uuid4().hex,
        sent_at=when,
        **{"expires_at": timezone.now() + DAY, **dict.fromkeys(ended, when)},
    )


def make_token(owned, when, **ended):
    values = {"tenant": owned.tenant, "user": owned.user, "name": "t", "prefix": "p", "hash": uuid.uuid4().hex}
    return ApiToken.objects.create(**values, **dict.fromkeys(ended, when))


def make_failed_export(owned, when):
    row = TenantExport.objects.create(tenant=owned.tenant, status=TenantExport.Status.FAILED)
    TenantExport.objects.filter(pk=row.pk).update(created_at=when)
    return row


def make_held_delivery(owned, when):
    Endpoint.objects.filter(pk=owned.endpoint.pk).update(enabled=False)
    return Delivery.objects.create(
        endpoint=owned.endpoint, event_type="ping", key=uuid.uuid4().hex, body="{}", created_at=when
    )


def make_session(owned, when):
    return Session.objects.create(session_key=uuid.uuid4().hex, session_data="", expire_date=when)


def make_attempt(owned, when):
    row = AccessAttempt.objects.create(username=uuid.uuid4().hex, failures_since_start=1)
    AccessAttempt.objects.filter(pk=row.pk).update(attempt_time=when)
    return row


@pytest.mark.parametrize(
    ("make", "kept", "ended"),
    [
        (make_key, DAY, []),
        (make_invitation, 30 * DAY, ["accepted_at"]),
        (make_invitation, 30 * DAY, ["revoked_at"]),
        (make_invitation, 30 * DAY, ["expires_at"]),
        (make_token, 90 * DAY, ["revoked_at"]),
        (make_token, 90 * DAY, ["expires_at"]),
        (make_failed_export, 7 * DAY, []),
        (make_held_delivery, 30 * DAY, []),
        (make_session, timedelta(), []),
        (make_attempt, 30 * DAY, []),
    ],
)
def test_rows_go_after_their_time(ours, make, kept, ended):
    now, minute = timezone.now(), timedelta(minutes=1)
    old = make(ours, now - kept - minute, **dict.fromkeys(ended, True))
    new = make(ours, now - kept + minute, **dict.fromkeys(ended, True))
    remove_expired_task()
    remaining = type(old)._default_manager.filter(pk__in=[old.pk, new.pk])
    assert list(remaining.values_list("pk", flat=True)) == [new.pk]


def test_what_is_in_use_stays(ours):
    """An open invitation, a token that works, and what is being sent."""
    ids = ours.ids
    remove_expired(now=timezone.now() + timedelta(days=5))
    assert Invitation.objects.filter(pk=ids["invitation_id"]).exists()
    assert ApiToken.objects.filter(pk=ids["token_id"]).exists()
    assert Delivery.objects.filter(pk=ours.delivery.pk).exists()
    assert ours.upload.data_path.exists()


def test_a_piece_at_a_time(ours, monkeypatch):
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    for _ in range(3):
        make_key(ours, timezone.now() - 2 * DAY)
    assert remove_expired() is True
    assert IdempotencyKey.objects.count() == 1
    assert remove_expired() is False
    assert not IdempotencyKey.objects.exists()


def test_temporary_files_of_requests_that_were_cut_off_go_after_a_day(db):
    old, new = settings.FILE_UPLOAD_TEMP_DIR / "old", settings.FILE_UPLOAD_TEMP_DIR / "new"
    for path in (old, new):
        path.touch()
    yesterday = timezone.now().timestamp() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    remove_expired()
    assert new.exists() and not old.exists()
