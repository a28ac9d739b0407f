"""What the frame around every page shows: the tenants to switch between."""

from typing import Any

from django.http import HttpRequest

from portal.tenants.selectors import lacks_required_mfa, list_memberships_of_user


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context processor. Lazy: a page without the frame (sign-in, fragments) costs no query."""
    membership = getattr(request, "membership", None)
    return {
        "membership": membership,
        "tenant": membership.tenant if membership else None,
        "memberships": list_memberships_of_user(membership.user) if membership else [],
        "mfa_needed": membership is not None and lacks_required_mfa(membership),
    }
