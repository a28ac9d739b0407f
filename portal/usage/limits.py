"""What a tenant's quotas refuse. Each check is made under the tenant's lock by the service that is about to write, so
that no two writers share the last of anything."""

from __future__ import annotations

from portal.errors import FieldError, Limit, QuotaExceeded
from portal.tenants.models import Tenant
from portal.usage.meters import STOPPING, Meter, get_quotas, get_trial_meter, list_meters, sum_reserved, sum_storage
from portal.usage.models import QuotaKind
from portal.usage.wording import amount, describe_reached, describe_used, hint_of

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
            limit=to_limit(queued),
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
            f"{tenant.name} has {active.used:g} active job(s), its limit is {active.limit:g}.",
            hint=ROOM_HINT,
            limit=to_limit(active),
        )
    _require_quota_left(meters)


def _require_quota_left(meters: dict[QuotaKind, Meter]) -> None:
    for kind in STOPPING:
        if meters[kind].is_reached:
            meter = meters[kind]
            raise QuotaExceeded(describe_reached(meter), hint=hint_of(meter), limit=to_limit(meter))


def require_steps(*, tenant: Tenant, steps: int, field: str = "training.steps") -> None:
    """Of one job in all. Raises QuotaExceeded at ``field``."""
    limit = get_quotas(tenant).max_steps_per_job
    if limit is not None and steps > limit:
        message = f"must be at most {limit:,}, the limit of {tenant.name} for one job"
        raise QuotaExceeded(
            f"A job of {tenant.name} may have at most {limit:,} steps.",
            fields=[FieldError(field, message)],
            hint="Choose fewer steps, or ask the operator for a higher limit.",
            limit=Limit("steps_per_job", used=steps, limit=limit),
        )


def require_storage(*, tenant: Tenant, size_bytes: int = 0, freed: int = 0) -> None:
    """For ``size_bytes`` more of files, where ``freed`` bytes go at the same time. Raises QuotaExceeded."""
    limit = get_quotas(tenant).max_storage_bytes
    if limit is None:
        return
    used = sum_storage(tenant) + sum_reserved(tenant)
    if used - freed + size_bytes > limit or used - freed >= limit:
        raise storage_full(tenant, used=used, limit=limit)


def find_storage_room(tenant: Tenant) -> int | None:
    """Bytes that may still be stored; None without a limit."""
    limit = get_quotas(tenant).max_storage_bytes
    return None if limit is None else max(0, limit - sum_storage(tenant) - sum_reserved(tenant))


def storage_full(tenant: Tenant, *, used: int, limit: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{tenant.name} stores {amount(QuotaKind.STORAGE_BYTES, used)} of its "
        f"{amount(QuotaKind.STORAGE_BYTES, limit)}; there is no room for this.",
        hint="Upload less, remove what is no longer needed, unfinished uploads too, or ask the operator for a higher "
        "limit.",
        limit=Limit(QuotaKind.STORAGE_BYTES.value, used=used, limit=limit),
    )


def require_trial(*, tenant: Tenant) -> None:
    """For one more reward trial today. Raises QuotaExceeded."""
    meter = get_trial_meter(tenant)
    if meter.is_reached:
        raise QuotaExceeded(
            f"{tenant.name} has begun {describe_used(meter)} reward tests of today.",
            hint=hint_of(meter),
            limit=to_limit(meter),
        )


def to_limit(meter: Meter) -> Limit:
    """Of a quota with a limit."""
    assert meter.limit is not None
    return Limit(meter.kind.value, used=meter.used, limit=meter.limit, resets_at=meter.resets_at)
