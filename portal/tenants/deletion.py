"""Deleting a tenant: asked for, undone for a week, then swept away.

Invariants: nothing is removed before the time has passed, nor while a job of the tenant may still run; a file is
removed before the row that names it, so none is forgotten; a dataset's file stays while another tenant has the same
rows; the audit log stays.
"""

from __future__ import annotations

import logging
import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from portal.adapters.models import AdapterVersion
from portal.audit.services import record_change
from portal.datasets.models import DatasetVersion
from portal.environments.models import tenant_folder
from portal.errors import Conflict, FieldError, InvalidInput
from portal.jobs.models import OPEN_STATUSES, Job, JobEvent
from portal.jobs.services import cancel_all_jobs
from portal.progress.models import StepRecord
from portal.rollouts.models import RolloutGroup
from portal.tenants.models import Tenant
from portal.tenants.services import require_owner

logger = logging.getLogger(__name__)

GRACE = timedelta(days=7)
ROWS_AT_ONCE = 2_000


@transaction.atomic
def request_deletion(*, tenant: Tenant, user: User, confirmation: str) -> Tenant:
    """Cancel the tenant's jobs and delete it after ``GRACE``. ``confirmation`` is its name, typed.

    Raises InvalidInput, Conflict where it was asked for already, NotAllowed, Http404.
    """
    require_owner(tenant=tenant, user=user)
    tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    if confirmation.strip() != tenant.name:
        message = f"Type the name exactly as it is written: {tenant.name}"
        raise InvalidInput("The tenant was not deleted.", fields=[FieldError("confirmation", message)])
    if tenant.delete_at is not None:
        raise Conflict(f"{tenant.name} is to be deleted already, on {tenant.delete_at:%d %b %Y}.")
    cancel_all_jobs(tenant=tenant, user=user)
    tenant.delete_at = timezone.now() + GRACE
    tenant.save(update_fields=["delete_at"])
    after = {"delete_at": tenant.delete_at}
    record_change(tenant=tenant, user=user, action="tenant.deletion_requested", target=tenant, after=after)
    return tenant


@transaction.atomic
def undo_deletion(*, tenant: Tenant, user: User) -> Tenant:
    """Keep the tenant; its cancelled jobs stay cancelled. Raises Conflict where nothing is to be undone, NotAllowed."""
    require_owner(tenant=tenant, user=user)
    tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
    if tenant.delete_at is None:
        raise Conflict(f"{tenant.name} is not to be deleted.")
    before, tenant.delete_at = {"delete_at": tenant.delete_at}, None
    tenant.save(update_fields=["delete_at"])
    record_change(tenant=tenant, user=user, action="tenant.deletion_undone", target=tenant, before=before)
    return tenant


def purge_due_tenants(*, now: datetime | None = None, seconds: float = 10.0) -> bool:
    """Remove the tenants whose time has come, for about ``seconds``; True where there is more to do at once.

    A tenant with a job that has not ended waits for a later call: the engine may be writing its files.
    """
    deadline = time.monotonic() + seconds
    for tenant in Tenant.objects.filter(delete_at__lte=now or timezone.now()):
        cancel_all_jobs(tenant=tenant, user=None)
        if Job.objects.filter(tenant=tenant, status__in=OPEN_STATUSES).exists():
            logger.info("Tenant %s is not removed yet: it has jobs that have not ended", tenant.pk)
            continue
        while _delete_some_rows(tenant):
            if time.monotonic() > deadline:
                return True
        _remove_files(tenant)
        _delete_rows(tenant)
        if time.monotonic() > deadline:
            return True
    return False


def _delete_some_rows(tenant: Tenant) -> bool:
    """Of what there are millions of, in small transactions: other writers wait for each on SQLite."""
    for model in (RolloutGroup, JobEvent, StepRecord):
        some = list(model.objects.filter(job__tenant=tenant).order_by().values_list("pk", flat=True)[:ROWS_AT_ONCE])
        if some:
            model.objects.filter(pk__in=some).delete()  # groups with their episodes
            return True
    return False


def _remove_files(tenant: Tenant) -> None:
    for export in tenant.exports.all():
        export.path.unlink(missing_ok=True)
    shutil.rmtree(tenant_folder(tenant.pk), ignore_errors=True)
    for version in DatasetVersion.objects.filter(dataset__tenant=tenant):
        others = DatasetVersion.objects.filter(sha256=version.sha256).exclude(dataset__tenant=tenant)
        if not others.exists() and not _is_fresh(version.path):
            version.path.unlink(missing_ok=True)
    removed = set()
    for job_id, path in (
        AdapterVersion.objects.filter(tenant=tenant).order_by().values_list("job_id", "path").iterator()
    ):
        folder = Path(path)
        # The engine keeps all of a job in one folder, named by its id.
        owned = next((each for each in (folder, *folder.parents) if each.name == job_id.hex), None)
        if owned is not None and owned not in removed:
            shutil.rmtree(owned, ignore_errors=True)
            removed.add(owned)


def _is_fresh(path: Path) -> bool:
    """Stored within the hour: another tenant may be about to name the same rows."""
    return path.exists() and time.time() - path.stat().st_mtime < 3600


@transaction.atomic
def _delete_rows(tenant: Tenant) -> None:
    record_change(tenant=tenant, user=None, action="tenant.deleted", target=tenant)
    tenant.delete()
    logger.info("Tenant %s is removed", tenant.pk)
