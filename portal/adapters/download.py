"""The signed download: whoever holds an unexpired link may fetch the adapter, signed in or not."""

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden

from portal.adapters.services import open_download_link


@login_not_required
def download_adapter(request: HttpRequest, token: str) -> HttpResponse:
    adapter = open_download_link(token=token)
    if adapter is None:
        return HttpResponseForbidden("This link is wrong or has expired. Ask for a new one.", content_type="text/plain")
    raise NotImplementedError
