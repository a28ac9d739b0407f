"""Reads of the audit log; every function takes the tenant first and sees nothing else's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.audit.models import AuditEntry
from portal.tenants.models import Tenant

PAGE_SIZE = 50
SKEW = timedelta(hours=1)
"""No transaction lasts as long: of two entries further apart the earlier has the smaller id."""


@dataclass(frozen=True)
class AuditFilter:
    """What to show; empty fields do not narrow it. Days are UTC, both included."""

    actor: str = ""
    """Part of the name of whoever acted, or was acted for."""
    action: str = ""
    """``noun.verb``, or ``noun`` for all its verbs."""
    target: str = ""
    """Part of an object's label, or its id."""
    since: date | None = None
    until: date | None = None


@dataclass(frozen=True)
class AuditPage:
    """Entries newest first, and the cursor of the next page."""

    entries: list[AuditEntry]
    next: int | None


def list_entries(tenant: Tenant, chosen: AuditFilter | None = None) -> QuerySet[AuditEntry]:
    """Newest first."""
    entries = AuditEntry.objects.filter(tenant_id=tenant.pk).order_by("-id")
    if chosen is None:
        return entries
    if chosen.actor:
        entries = entries.filter(Q(actor_label__icontains=chosen.actor) | Q(on_behalf_of__icontains=chosen.actor))
    if chosen.action:
        exact = "." in chosen.action
        entries = (
            entries.filter(action=chosen.action) if exact else entries.filter(action__startswith=f"{chosen.action}.")
        )
    if chosen.target:
        entries = entries.filter(Q(object_label__icontains=chosen.target) | Q(object_id=chosen.target))
    if chosen.since:
        since = _midnight(chosen.since)
        entries = entries.filter(time__gte=since, **_id_bound(tenant, "gt", time__lt=since - SKEW))
    if chosen.until:
        until = _midnight(chosen.until) + timedelta(days=1)
        entries = entries.filter(time__lt=until, **_id_bound(tenant, "lt", time__gte=until + SKEW))
    return entries


def _id_bound(tenant: Tenant, side: str, **times: datetime) -> dict[str, int]:
    """Ids grow with time but for ``SKEW``: by them a page of days long ago is found at once, in the log's order."""
    order = "-time" if side == "gt" else "time"
    beyond = AuditEntry.objects.filter(tenant_id=tenant.pk, **times).order_by(order).values_list("pk", flat=True)[:1]
    return {f"pk__{side}": pk for pk in beyond}


def _midnight(day: date) -> datetime:
    return timezone.make_aware(datetime.combine(day, time.min), timezone.get_fixed_timezone(0))


def read_page(
    tenant: Tenant, chosen: AuditFilter | None = None, *, before: int | None = None, limit: int = PAGE_SIZE
) -> AuditPage:
    """The ``limit`` entries older than the entry ``before``. The cursor holds while new entries come."""
    entries = list_entries(tenant, chosen)
    if before is not None:
        entries = entries.filter(id__lt=before)
    found = list(entries[: limit + 1])
    more = len(found) > limit
    return AuditPage(entries=found[:limit], next=found[limit - 1].pk if more else None)


def list_actions(tenant: Tenant) -> list[str]:
    """The actions there are entries of, to choose from."""
    # Without the model's order, which would make every entry a different one.
    entries = AuditEntry.objects.filter(tenant_id=tenant.pk).order_by()
    return sorted(entries.values_list("action", flat=True).distinct())


def render_entry(entry: AuditEntry) -> dict[str, Any]:
    """An entry as the API and the tenant's export give it."""
    return {
        "id": entry.pk,
        "time": entry.time.isoformat(),
        "actor": {"kind": entry.actor_kind, "id": entry.actor_id, "label": entry.actor_label},
        "on_behalf_of": entry.on_behalf_of,
        "action": entry.action,
        "object": {"type": entry.object_type, "id": entry.object_id, "label": entry.object_label},
        "before": entry.before,
        "after": entry.after,
        "reason": entry.reason,
        "request_id": entry.request_id,
        "address": entry.address,
    }


CSV_COLUMNS = [
    "time", "actor_kind", "actor", "on_behalf_of", "action", "object_type", "object_id", "object",
    "before", "after", "reason", "request_id", "address",
]  # fmt: skip


def csv_rows(entries: Iterable[AuditEntry]) -> Iterator[list[str]]:
    """One row an entry, in the order of ``CSV_COLUMNS``; cells no spreadsheet takes for a formula."""
    for entry in entries:
        cells: dict[str, Any] = {
            **{name: getattr(entry, name, "") for name in CSV_COLUMNS},
            "time": entry.time.isoformat(),
            "actor": entry.actor_label,
            "object": entry.object_label,
            "before": json.dumps(entry.before, ensure_ascii=False),
            "after": json.dumps(entry.after, ensure_ascii=False),
            "address": entry.address or "",
        }
        yield [_harmless(str(cells[name])) for name in CSV_COLUMNS]


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
