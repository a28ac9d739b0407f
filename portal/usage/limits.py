"""What a tenant's quotas refuse. Each check is made under the tenant's lock by the service that is about to write, so
that no two writers share the last of anything."""

from __future__ import annotations

from portal.errors import FieldError, QuotaExceeded
from portal.tenants.models import Tenant
from portal.usage.meters import STOPPING, Meter, get_quotas, list_meters, sum_storage
from portal.usage.models import QuotaKind
from portal.usage.wording import amount, describe_reached, hint_of

ROOM_HINT = "Wait until one finishes, pause or cancel one, or ask the operator for a higher limit."


def require_room_for_job(*, tenant: Tenant, steps: int) -> None:
    """For a new job of so many steps. Raises QuotaExceeded."""
    require_steps(tenant=tenant, steps=steps)
    meters = {meter.kind: meter for meter in list_meters(tenant)}
    _require_place(tenant, meters)
    queued = meters[QuotaKind.QUEUED_JOBS]
    if queued.is_reached:
        raise QuotaExceeded(
            f"{tenant.name} has {queued.used:g} queued job(s), its limit is {queued.limit:g}.",
            hint="Wait until one starts, cancel one, or ask the operator for a higher limit.",
        )


def require_place(*, tenant: Tenant) -> None:
    """For a paused job to go on. Raises QuotaExceeded."""
    _require_place(tenant, {meter.kind: meter for meter in list_meters(tenant)})


def require_quota_left(*, tenant: Tenant) -> None:
    """For a job that has its place and is to keep it. Raises QuotaExceeded."""
    _require_quota_left({meter.kind: meter for meter in list_meters(tenant)})


def _require_place(tenant: Tenant, meters: dict[QuotaKind, Meter]) -> None:
    active = meters[QuotaKind.ACTIVE_JOBS]
    if active.is_reached:
        raise QuotaExceeded(
            f"{tenant.name} has {active.used:g} active job(s), its limit is {active.limit:g}.", hint=ROOM_HINT
        )
    _require_quota_left(meters)


def _require_quota_left(meters: dict[QuotaKind, Meter]) -> None:
    for kind in STOPPING:
        if meters[kind].is_reached:
            raise QuotaExceeded(describe_reached(meters[kind]), hint=hint_of(meters[kind]))


def require_steps(*, tenant: Tenant, steps: int, field: str = "training.steps") -> None:
    """Of one job in all. Raises QuotaExceeded at ``field``."""
    limit = get_quotas(tenant).max_steps_per_job
    if limit is not None and steps > limit:
        message = f"must be at most {limit:,}, the limit of {tenant.name} for one job"
        raise QuotaExceeded(
            f"A job of {tenant.name} may have at most {limit:,} steps.",
            fields=[FieldError(field, message)],
            hint="Choose fewer steps, or ask the operator for a higher limit.",
        )


def require_storage(*, tenant: Tenant, size_bytes: int = 0) -> None:
    """For ``size_bytes`` more of files. Raises QuotaExceeded."""
    limit = get_quotas(tenant).max_storage_bytes
    if limit is None:
        return
    used = sum_storage(tenant)
    if used + size_bytes > limit or used >= limit:
        raise QuotaExceeded(
            f"{tenant.name} stores {amount(QuotaKind.STORAGE_BYTES, used)} of its "
            f"{amount(QuotaKind.STORAGE_BYTES, limit)}; there is no room for this.",
            hint="Upload less, remove what is no longer needed, or ask the operator for a higher limit.",
        )
