"""``request.tenant`` and ``request.membership`` of a browser session; both ``None`` where there is none."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from portal.tenants.selectors import get_current_membership


class TenantMiddleware:
    """The tenant chosen in the session, else the user's first."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        membership = get_current_membership(user=request.user, session=request.session)
        request.membership = membership  # type: ignore[attr-defined]
        request.tenant = membership.tenant if membership else None  # type: ignore[attr-defined]
        return self.get_response(request)
