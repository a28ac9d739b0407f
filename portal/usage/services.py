"""Writes of quotas. Only admins change them, and each change says why."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from portal.audit.services import record_change
from portal.errors import FieldError, InvalidInput, NotAllowed
from portal.tenants.models import Tenant
from portal.usage.enforcement import enforce_quotas
from portal.usage.models import QuotaChange, TenantQuotas
from portal.usage.wording import LIMIT_NAMES, limit_in_words

TENANT_LIMITS = ("max_active_jobs", "max_dataset_bytes", "max_dataset_rows", "max_reward_trials_per_day")
"""Limits kept on ``Tenant``; always set."""
OPTIONAL_LIMITS = (
    "max_queued_jobs",
    "max_steps_per_job",
    "max_sampled_tokens",
    "max_trained_tokens",
    "max_accelerator_seconds",
    "max_storage_bytes",
    "max_api_requests_per_minute",
)
"""Limits of ``TenantQuotas``; None does not limit."""
LARGEST = 2**53
MAX_REASON = 1000


def change_quotas(*, tenant: Tenant, user: User, reason: str, limits: dict[str, int | None]) -> QuotaChange | None:
    """Set the limits named; None where that changes nothing. They hold at once, for what runs too.

    Raises InvalidInput, NotAllowed for everybody but the operator's staff.
    """
    if not (user.is_active and user.is_staff and user.has_perm("usage.change_tenantquotas")):
        raise NotAllowed("Only the operator's admins change quotas.", hint="Ask the operator for a higher limit.")
    errors = [*_limit_errors(limits), *_reason_errors(reason)]
    if errors:
        raise InvalidInput("The quotas were not changed.", fields=errors)
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        quotas, _ = TenantQuotas.objects.get_or_create(tenant=tenant)
        before: dict[str, Any] = {}
        for name, value in limits.items():
            owner: Any = tenant if name in TENANT_LIMITS else quotas
            if getattr(owner, name) != value:
                before[name] = getattr(owner, name)
                setattr(owner, name, value)
        if not before:
            return None
        tenant.save(update_fields=TENANT_LIMITS)
        quotas.save()
        transaction.on_commit(lambda: enforce_quotas(tenant_ids=[tenant.pk]))
        after = {name: limits[name] for name in before}
        record_change(
            tenant=tenant,
            user=user,
            action="quotas.changed",
            target=quotas,
            before={"limits": _in_words(before)},
            after={"limits": _in_words(after)},
            reason=reason.strip(),
        )
        return QuotaChange.objects.create(
            tenant=tenant,
            changed_by_id=user.pk,
            changed_by_name=user.get_username(),
            reason=reason.strip(),
            before=before,
            after=after,
        )


def _in_words(limits: dict[str, Any]) -> list[str]:
    """As the audit log keeps them; by name it would take limits of tokens for secrets and mask them."""
    return [f"{LIMIT_NAMES[name]}: {limit_in_words(name, value)}" for name, value in limits.items()]


def _limit_errors(limits: dict[str, int | None]) -> list[FieldError]:
    errors = []
    for name, value in limits.items():
        if name not in TENANT_LIMITS + OPTIONAL_LIMITS:
            errors.append(FieldError(name, "is no quota"))
        elif value is None and name in TENANT_LIMITS:
            errors.append(FieldError(name, "is required"))
        elif value is not None and not 0 <= value <= _largest(name):
            errors.append(FieldError(name, f"must be at least 0 and at most {_largest(name):,}"))
    return errors


def _largest(name: str) -> int:
    return LARGEST if name.endswith(("_tokens", "_seconds", "_bytes")) else 2**31 - 1


def _reason_errors(reason: str) -> list[FieldError]:
    if not reason.strip():
        return [FieldError("reason", "Say why; it is kept in the history of the tenant's quotas.")]
    if len(reason.strip()) > MAX_REASON:
        return [FieldError("reason", f"must have at most {MAX_REASON} characters")]
    return []
