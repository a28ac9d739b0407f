"""Writes of tenant exports: everything a tenant owns as one zip, made in the background.

Invariants: the worker that makes it also ingests events, so it works in stretches of a few seconds, each sent to the
queue by the one before; what a killed stretch left is thrown away and the export begins anew, three times at most; a
file under its link is complete.
"""

from __future__ import annotations

import logging
import time
import uuid
import zipfile
from datetime import datetime, timedelta
from typing import Literal

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from kombu.exceptions import OperationalError

from engine.events import EVENTS_QUEUE
from portal.audit.services import accountable_user_id, record_change
from portal.celery import app
from portal.errors import Conflict
from portal.tenants.export_parts import plan_parts, write_part
from portal.tenants.models import Tenant, TenantExport
from portal.tenants.services import require_owner

logger = logging.getLogger(__name__)

CONTINUE_EXPORT = "portal.continue_export"
LINK_SALT = "portal.tenants.export"
KEPT_FOR = timedelta(days=7)
STRETCH_SECONDS = 4.0
PROGRESS_SECONDS = 0.5
MAX_ATTEMPTS = 3
STUCK_AFTER = timedelta(minutes=2)


def create_export(*, tenant: Tenant, user: User) -> TenantExport:
    """Begin an export. Raises Conflict while another one runs, NotAllowed, Http404."""
    require_owner(tenant=tenant, user=user)
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
        if tenant.exports.filter(status=TenantExport.Status.RUNNING).exists():
            raise Conflict("An export is being made already.", hint="Wait until it is ready.")
        export = TenantExport.objects.create(tenant=tenant, created_by_id=user.pk)
        record_change(tenant=tenant, user=user, action="export.started", target=export)
        transaction.on_commit(lambda: _enqueue(export))
    return export


def continue_export(*, export_id: uuid.UUID, slice_number: int, seconds: float = STRETCH_SECONDS) -> None:
    """Work on an export for about ``seconds``, then hand over to the next stretch. Repeats are harmless."""
    with transaction.atomic():
        export = TenantExport.objects.select_for_update().select_related("tenant").filter(pk=export_id).first()
        if export is None or export.status != export.Status.RUNNING or export.slice != slice_number:
            return
        if export.writing and not _begin_anew(export):
            return
        if not export.plan:
            export.plan = plan_parts(export.tenant)
            export.parts_total = len(export.plan)
        export.writing = True
        export.save()
    try:
        _write_for(export, seconds)
    except Exception:
        logger.exception("Export %s of tenant %s failed", export.pk, export.tenant_id)
        _fail(export, "Something went wrong while it was made; it was logged. Start another one.")
        return
    with transaction.atomic():
        export.writing = False
        export.slice += 1
        if export.parts_done == export.parts_total:
            export.status = export.Status.READY
            export.size_bytes = export.path.stat().st_size
            export.expires_at = timezone.now() + KEPT_FOR
        else:
            transaction.on_commit(lambda: _enqueue(export))
        export.save()


def _write_for(export: TenantExport, seconds: float) -> None:
    told, deadline = time.monotonic(), time.monotonic() + seconds
    export.path.parent.mkdir(parents=True, exist_ok=True)
    mode: Literal["a", "w"] = "a" if export.parts_done else "w"
    with zipfile.ZipFile(export.path, mode, zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for part in export.plan[export.parts_done :]:
            write_part(archive, export.tenant, part)
            export.parts_done += 1
            now = time.monotonic()
            if now > told + PROGRESS_SECONDS:  # not for each: most of the parts of many jobs are tiny
                TenantExport.objects.filter(pk=export.pk).update(parts_done=export.parts_done)
                told = now
            if now > deadline:
                return


def _begin_anew(export: TenantExport) -> bool:
    """A stretch was cut off and may have left half a file; False where it has happened too often."""
    if export.attempt >= MAX_ATTEMPTS:
        _fail(export, "It was interrupted too often. Start another one, or ask the operator.")
        return False
    export.attempt += 1
    export.parts_done = 0
    return True


def _fail(export: TenantExport, error: str) -> None:
    export.path.unlink(missing_ok=True)
    export.status, export.error, export.writing = export.Status.FAILED, error, False
    export.save()


def _enqueue(export: TenantExport) -> None:
    try:
        app.send_task(CONTINUE_EXPORT, args=[export.pk.hex, export.slice], queue=EVENTS_QUEUE, retry=False)
    except OperationalError as error:
        logger.warning("The broker cannot be reached, export %s goes on later: %s", export.pk, error)


def sweep_exports(*, now: datetime | None = None) -> None:
    """Wake exports whose worker was lost; remove files that have expired."""
    now = now or timezone.now()
    for export in TenantExport.objects.filter(status=TenantExport.Status.RUNNING, touched_at__lt=now - STUCK_AFTER):
        _enqueue(export)
    for export in TenantExport.objects.filter(expires_at__lte=now):
        export.path.unlink(missing_ok=True)
        export.delete()


# --- the file --------------------------------------------------------------------------------------------------------


def create_export_link(*, tenant: Tenant, user: User, export: TenantExport) -> str:
    """A path that downloads the export for ``DOWNLOAD_LINK_SECONDS``, without a cookie. Raises Conflict, NotAllowed."""
    require_owner(tenant=tenant, user=user)
    if not export.is_available:
        raise Conflict("This export is not ready, or it has expired.", hint="Wait for it, or start another one.")
    token = signing.dumps([export.pk.hex, accountable_user_id(user)], salt=LINK_SALT)
    return reverse("tenants:export-file", kwargs={"token": token})


@transaction.atomic
def open_export_link(*, token: str) -> TenantExport | None:
    """The export a link is for, its download written down; None where the link is wrong or has expired."""
    try:
        export_id, user_id = signing.loads(token, salt=LINK_SALT, max_age=settings.DOWNLOAD_LINK_SECONDS)
    except signing.BadSignature:
        return None
    export = TenantExport.objects.filter(pk=export_id).select_related("tenant").first()
    if export is None or not export.is_available or not export.path.exists():
        return None
    user = get_user_model().objects.filter(pk=user_id).first()
    record_change(tenant=export.tenant, user=user, action="export.downloaded", target=export)
    return export
