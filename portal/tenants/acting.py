"""As whom a session acts: its own user, or the member an admin looks through the eyes of."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from django.contrib.auth.models import AnonymousUser, User

from portal.tenants.impersonation import find_impersonation
from portal.tenants.models import Membership, Tenant
from portal.tenants.selectors import get_current_membership, get_membership, lacks_required_mfa


def get_acting_membership(*, user: User | AnonymousUser, session: MutableMapping[str, Any]) -> Membership | None:
    """The membership a session may read under now; None as well where its user must set up MFA first."""
    impersonation = find_impersonation(user=user, session=session)
    if impersonation is not None:
        return get_membership(impersonation.tenant, impersonation.user)
    membership = get_current_membership(user=user, session=session)
    return None if membership is None or lacks_required_mfa(membership) else membership


def may_still_read(*, tenant: Tenant, user: User | AnonymousUser, session: MutableMapping[str, Any]) -> bool:
    """A socket of this session, opened earlier, may go on reading the tenant."""
    impersonation = find_impersonation(user=user, session=session)
    if impersonation is not None:
        return impersonation.tenant == tenant and get_membership(tenant, impersonation.user) is not None
    membership = get_membership(tenant, user)
    return membership is not None and not lacks_required_mfa(membership)
