"""Writes of adapter versions (projection of events) and the signed links that hand them out."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction
from django.urls import reverse

from engine.events import AdapterPublished, AdapterRemoved
from portal.adapters.models import AdapterVersion
from portal.adapters.selectors import CARD_RELATIONS
from portal.audit.services import accountable_user_id, record_change
from portal.errors import Conflict
from portal.jobs.models import Job

LINK_SALT = "portal.adapters.download"


def record_published(*, job: Job, payload: AdapterPublished, time: datetime) -> None:
    """Apply an ``adapter`` event: a version that exists may only become final."""
    AdapterVersion.objects.update_or_create(
        job=job,
        version=payload.adapter_version,
        defaults={
            "name": payload.name,
            "path": payload.path,
            "sha256": payload.sha256,
            "size_bytes": payload.size_bytes,
            "rank": payload.rank,
            "step": payload.step,
            "final": payload.final,
            "created_at": time,
        },
    )


def record_removed(*, job: Job, payload: AdapterRemoved) -> None:
    """Apply an ``adapter_removed`` event."""
    AdapterVersion.objects.filter(job=job, version__in=payload.adapter_versions).update(removed=True)


def create_download_link(*, adapter: AdapterVersion, user: User | None = None) -> str:
    """A path that downloads the adapter for ``DOWNLOAD_LINK_SECONDS``, without a cookie. Hand it to its tenant only.

    ``user`` is whom the audit log will name for downloads with it.
    """
    if adapter.removed:
        raise Conflict(
            f"Retention removed the files of {adapter.name}.", hint="Download a newer version of the same job."
        )
    token = signing.dumps([str(adapter.pk), accountable_user_id(user)], salt=LINK_SALT)
    return reverse("adapter-download", kwargs={"token": token})


def open_download_link(*, token: str) -> tuple[AdapterVersion, User | None] | None:
    """The adapter version a link is for and whose link it is; None where the link is wrong or has expired."""
    try:
        named = signing.loads(token, salt=LINK_SALT, max_age=settings.DOWNLOAD_LINK_SECONDS)
    except signing.BadSignature:
        return None
    adapter_id, user_id = named if isinstance(named, list) else (named, None)
    adapter = AdapterVersion.objects.filter(pk=adapter_id, removed=False).select_related(*CARD_RELATIONS).first()
    if adapter is None:
        return None
    return adapter, get_user_model().objects.filter(pk=user_id).first() if user_id else None


@transaction.atomic
def record_download(*, adapter: AdapterVersion, user: User | None) -> None:
    """Write down that the files left the portal, by the link of ``user``."""
    record_change(tenant=adapter.job.tenant, user=user, action="adapter.downloaded", target=adapter)
