"""What is long over is removed, so that an installation of years holds no more of it than one of weeks.

Here is what no other sweep looks after; the whole table is in the portal's README. Audit log, usage, notices and
changes of quotas, and whatever a tenant made itself, stay for as long as the tenant.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db.models import Model, Q, QuerySet
from django.utils import timezone

from portal.api.idempotency import KEPT as IDEMPOTENCY_KEPT
from portal.api.models import IdempotencyKey
from portal.tenants.models import ApiToken, Invitation, TenantExport
from portal.webhooks.delivery import KEPT_DAYS
from portal.webhooks.models import Delivery

logger = logging.getLogger(__name__)

AT_ONCE = 1000
"""Rows of a kind in one run: the worker that does it has events to take in."""
INVITATIONS_KEPT = timedelta(days=30)
TOKENS_KEPT = timedelta(days=90)
FAILED_EXPORTS_KEPT = timedelta(days=7)
SIGN_INS_KEPT = timedelta(days=30)
TEMPORARY_FILES_KEPT = timedelta(days=1)


def _idempotency_keys(now: datetime) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.filter(created_at__lt=now - IDEMPOTENCY_KEPT)


def _invitations(now: datetime) -> QuerySet[Invitation]:
    """Used, revoked or expired so long ago."""
    before = now - INVITATIONS_KEPT
    return Invitation.objects.filter(Q(accepted_at__lt=before) | Q(revoked_at__lt=before) | Q(expires_at__lt=before))


def _api_tokens(now: datetime) -> QuerySet[ApiToken]:
    """Revoked or expired so long ago."""
    before = now - TOKENS_KEPT
    return ApiToken.objects.filter(Q(revoked_at__lt=before) | Q(expires_at__lt=before))


def _failed_exports(now: datetime) -> QuerySet[TenantExport]:
    """Their files are gone already."""
    failed = TenantExport.objects.filter(status=TenantExport.Status.FAILED)
    return failed.filter(created_at__lt=now - FAILED_EXPORTS_KEPT)


def _deliveries_held_back(now: datetime) -> QuerySet[Delivery]:
    """Of endpoints that were switched off before they were sent."""
    before = now - timedelta(days=KEPT_DAYS)
    return Delivery.objects.filter(endpoint__enabled=False, finished_at=None, created_at__lt=before)


def _sessions(now: datetime) -> QuerySet[Session]:
    return Session.objects.filter(expire_date__lt=now)


def _failed_sign_ins(now: datetime) -> QuerySet[AccessAttempt]:
    return AccessAttempt.objects.filter(attempt_time__lt=now - SIGN_INS_KEPT)


def _sign_in_log(now: datetime) -> QuerySet[AccessLog]:
    return AccessLog.objects.filter(attempt_time__lt=now - SIGN_INS_KEPT)


def _sign_in_failure_log(now: datetime) -> QuerySet[AccessFailureLog]:
    return AccessFailureLog.objects.filter(attempt_time__lt=now - SIGN_INS_KEPT)


EXPIRED: tuple[Callable[[datetime], QuerySet[Model]], ...] = (
    _idempotency_keys,
    _invitations,
    _api_tokens,
    _failed_exports,
    _deliveries_held_back,
    _sessions,
    _failed_sign_ins,
    _sign_in_log,
    _sign_in_failure_log,
)


def remove_expired(*, now: datetime | None = None) -> bool:
    """Remove up to ``AT_ONCE`` of each kind; whether there may be more."""
    now, more = now or timezone.now(), False
    for select in EXPIRED:
        rows = select(now)
        chosen = list(rows.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
        if chosen:
            # Under the same condition again: an invitation may have been sent anew meanwhile.
            rows.filter(pk__in=chosen).delete()
            logger.info("Removed %d %s that had expired", len(chosen), rows.model._meta.verbose_name_plural)
        more = more or len(chosen) == AT_ONCE
    _remove_temporary_files()
    return more


def _remove_temporary_files() -> None:
    """Left by requests and checks that were cut off."""
    before = time.time() - TEMPORARY_FILES_KEPT.total_seconds()
    for path in Path(settings.FILE_UPLOAD_TEMP_DIR).iterdir():
        try:
            if path.is_file() and path.stat().st_mtime < before:
                path.unlink()
        except FileNotFoundError:
            pass
