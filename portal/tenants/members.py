"""Writes of memberships by a tenant's owners.

Invariant: the last owner stays. Every change of a tenant's members holds the tenant's lock, so two owners cannot demote
or remove each other at the same time.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from portal.audit.services import record_change
from portal.errors import Conflict, FieldError, InvalidInput
from portal.tenants.models import ApiToken, Membership, Role, Tenant
from portal.tenants.selectors import get_member
from portal.tenants.services import require_member, require_owner


@transaction.atomic
def change_member_role(*, tenant: Tenant, user: User, membership_id: int, role: str) -> Membership:
    """Raises Conflict for the last owner, InvalidInput, NotAllowed, Http404."""
    member = _lock_member(tenant=tenant, membership_id=membership_id)
    require_owner(tenant=tenant, user=user)
    if role not in Role.values:
        message = f"must be one of {', '.join(Role.values)}"
        raise InvalidInput("The role was not changed.", fields=[FieldError("role", message)])
    before = member.role
    if before != role:
        if before == Role.OWNER:
            _require_another_owner(member)
        member.role = role
        member.save(update_fields=["role"])
        _record(member, user, "member.changed", before={"role": before}, after={"role": role})
    return member


@transaction.atomic
def remove_member(*, tenant: Tenant, user: User, membership_id: int) -> None:
    """Take a member's access, API tokens included; leaving needs no right. As ``change_member_role`` otherwise."""
    member = _lock_member(tenant=tenant, membership_id=membership_id)
    leaves = member.user_id == user.pk
    if not leaves:
        require_owner(tenant=tenant, user=user)
    if member.role == Role.OWNER:
        _require_another_owner(member)
    # A token of theirs must not come back to life when they are invited again.
    live = ApiToken.objects.filter(tenant=tenant, user_id=member.user_id, revoked_at=None)
    revoked = live.update(revoked_at=timezone.now())
    _record(
        member,
        user,
        "member.left" if leaves else "member.removed",
        before={"role": member.role},
        after={"revoked": revoked},
    )
    member.delete()


def leave_tenant(*, tenant: Tenant, user: User) -> None:
    """Raises Conflict for the last owner and Http404 for strangers."""
    membership = require_member(tenant=tenant, user=user)
    remove_member(tenant=tenant, user=user, membership_id=membership.pk)


def _lock_member(*, tenant: Tenant, membership_id: int) -> Membership:
    if not Tenant.objects.select_for_update().filter(pk=tenant.pk).exists():
        raise Http404("No such tenant.")
    return get_member(tenant, membership_id)


def _require_another_owner(member: Membership) -> None:
    others = Membership.objects.filter(tenant_id=member.tenant_id, role=Role.OWNER).exclude(pk=member.pk)
    if not others.exists():
        raise Conflict(
            f"{member.user.get_username()} is the last owner of the tenant.",
            hint="Make another member owner first, or delete the tenant on its settings page.",
        )


def _record(
    member: Membership, user: User, action: str, *, before: dict[str, object], after: dict[str, object]
) -> None:
    record_change(
        tenant=member.tenant,
        user=user,
        action=action,
        target=member,
        label=member.user.get_username(),
        before=before,
        after=after,
    )
