"""What the views of every app share: the request of a tenant's member, and services' refusals shown at the fields."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Concatenate, ParamSpec

from django.conf import settings
from django.contrib.auth.models import User
from django.forms import BaseForm
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse

from portal.errors import FieldError, ServiceError
from portal.tenants.models import Impersonation, Membership, Tenant
from portal.tenants.services import require_writer

P = ParamSpec("P")


class TenantRequest(HttpRequest):
    """A request of a signed-in member, as ``tenant_page`` hands it to a view."""

    user: User
    tenant: Tenant
    membership: Membership
    impersonation: Impersonation | None


View = Callable[Concatenate[TenantRequest, P], HttpResponseBase]


def tenant_page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """For pages inside a tenant: whoever is a member of none is told what to do."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if request.tenant is None:  # type: ignore[attr-defined]
            return render(request, "pages/no_tenant.html", status=403)
        return view(request, *args, **kwargs)  # type: ignore[arg-type]

    return wrapper


def writer_page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """``tenant_page`` for forms and actions viewers may not use."""

    @wraps(view)
    def checked(request: TenantRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        require_writer(tenant=request.tenant, user=request.user)
        return view(request, *args, **kwargs)

    return tenant_page(checked)


class PageMiddleware:
    """Answers for pages: a service's refusal that no form has taken care of, and parts fetched after signing out.

    The API answers in its own shape.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if "HX-Request" in request.headers and response.get("Location", "").startswith(reverse(settings.LOGIN_URL)):
            # The browser would follow the redirect and put the sign-in page where the part belongs.
            return HttpResponse("You are signed out. Reload the page.", status=401, content_type="text/plain")
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, ServiceError):
            return None
        return render(request, "pages/refused.html", {"error": exception}, status=exception.status)


def add_service_errors(form: BaseForm, error: ServiceError, names: Mapping[str, str] | None = None) -> None:
    """Put a service's refusal where it belongs: each field error at its field, the rest above the form.

    ``names`` maps the service's field names to the form's where they differ.
    """
    for item in error.fields:
        name = (names or {}).get(item.field, item.field)
        if name in form.fields:
            form.add_error(name, sentence(item, label=str(form[name].label)))
        else:
            form.add_error(None, sentence(item, label=item.field))
    if not error.fields:
        form.add_error(None, f"{error.message} {error.hint}".strip())


def in_words(error: ServiceError) -> str:
    """A service's refusal as one text, where there is no form to show it in."""
    said = [sentence(item, label=item.field.capitalize()) for item in error.fields] or [error.message]
    return " ".join([*said, error.hint]).strip()


def sentence(item: FieldError, *, label: str) -> str:
    """``must be at most 16`` -> ``Rank must be at most 16.``; messages that are sentences stay as they are."""
    message = item.message
    if message.split(" ", 1)[0] in {"must", "is", "needs"}:
        message = f"{label} {message}"
    message = message[:1].upper() + message[1:]
    return message if message.endswith((".", "?", "!")) else f"{message}."


def page_number(request: HttpRequest) -> str:
    return request.GET.get("page", "1")


def uuid_or_404(text: str) -> uuid.UUID:
    """An id from a query string; what is no id names nothing."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Http404("No such object.") from None
