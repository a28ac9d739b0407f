"""Writes of adapter versions (projection of events) and the signed links that hand them out."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction
from django.urls import reverse

from portal.adapters.models import AdapterVersion
from portal.adapters.selectors import CARD_RELATIONS
from portal.audit.services import accountable_user_id, record_change
from portal.bulk import insert_rows, update_rows
from portal.errors import Conflict
from portal.jobs.stored import StoredEvent

LINK_SALT = "portal.adapters.download"
PUBLISHED_FIELDS = ("name", "path", "sha256", "size_bytes", "rank", "step")
"""As in ``engine.events.AdapterPublished``."""


def record_versions(*, events: Sequence[StoredEvent], tenant_ids: Mapping[uuid.UUID, uuid.UUID]) -> None:
    """Apply ``adapter`` and ``adapter_removed`` events of any jobs, those of each in order: a version that exists may
    only become final, or lose its files. ``tenant_ids`` are the jobs' tenants, by job."""
    if not events:
        return
    versions = AdapterVersion.objects.filter(
        job__in={event.job_id for event in events}, version__in={each for event in events for each in _named(event)}
    )
    known = {(adapter.job_id, adapter.version): adapter for adapter in versions.order_by()}
    new: list[AdapterVersion] = []
    changed: dict[uuid.UUID, AdapterVersion] = {adapter.pk: adapter for adapter in known.values()}
    for event in events:
        for version in _named(event):
            adapter = known.get((event.job_id, version))
            if event.type == "adapter_removed":
                if adapter:
                    adapter.removed = True
                continue
            if adapter is None:
                adapter = known[event.job_id, version] = AdapterVersion(job_id=event.job_id, version=version)
                adapter.tenant_id = tenant_ids[event.job_id]
                new.append(adapter)
            for name in PUBLISHED_FIELDS:
                setattr(adapter, name, event.payload[name])
            adapter.final, adapter.created_at = event.payload.get("final", False), event.time
    names = [field.name for field in AdapterVersion._meta.concrete_fields]
    attributes = [field.attname for field in AdapterVersion._meta.concrete_fields]
    insert_rows(AdapterVersion, names, [[getattr(adapter, name) for name in attributes] for adapter in new])
    update_rows(AdapterVersion, [*PUBLISHED_FIELDS, "final", "created_at", "removed"], changed.values())


def _named(event: StoredEvent) -> list[int]:
    payload = event.payload
    return payload["adapter_versions"] if event.type == "adapter_removed" else [payload["adapter_version"]]


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
