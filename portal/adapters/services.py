"""Writes of adapter versions (projection of events) and the signed links that hand them out."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.core import signing
from django.urls import reverse

from engine.events import AdapterPublished, AdapterRemoved
from portal.adapters.models import AdapterVersion
from portal.errors import Conflict
from portal.jobs.models import Job

LINK_SALT = "portal.adapters.download"


def record_published(*, job: Job, payload: AdapterPublished, time: datetime) -> AdapterVersion:
    """Apply an ``adapter`` event: a version that exists may only become final."""
    adapter, _ = AdapterVersion.objects.update_or_create(
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
    return adapter


def record_removed(*, job: Job, payload: AdapterRemoved) -> None:
    """Apply an ``adapter_removed`` event."""
    AdapterVersion.objects.filter(job=job, version__in=payload.adapter_versions).update(removed=True)


def create_download_link(*, adapter: AdapterVersion) -> str:
    """A path that downloads the adapter for ``DOWNLOAD_LINK_SECONDS``, without a cookie. Hand it to its tenant only."""
    if adapter.removed:
        raise Conflict(
            f"Retention removed the files of {adapter.name}.", hint="Download a newer version of the same job."
        )
    token = signing.dumps(str(adapter.pk), salt=LINK_SALT)
    return reverse("adapter-download", kwargs={"token": token})


def open_download_link(*, token: str) -> AdapterVersion | None:
    """The adapter version a link was made for; None where the link is wrong or has expired."""
    try:
        adapter_id = signing.loads(token, salt=LINK_SALT, max_age=settings.DOWNLOAD_LINK_SECONDS)
    except signing.BadSignature:
        return None
    return AdapterVersion.objects.filter(pk=adapter_id, removed=False).select_related("job__base_model").first()
