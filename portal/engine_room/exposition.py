"""``/metrics``: for Prometheus with the token, for addresses the operator names, and for signed-in staff."""

from __future__ import annotations

import hmac
import ipaddress

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from portal.engine_room.metrics import registry


@login_not_required
@require_GET
def metrics(request: HttpRequest) -> HttpResponse:
    """In Prometheus' text format; 404 for whoever may not read it."""
    if not (_has_token(request) or _is_near(request) or (request.user.is_active and request.user.is_staff)):
        words = "Metrics are for staff, for the bearer of METRICS_TOKEN, and for addresses in METRICS_NETWORKS.\n"
        return HttpResponse(words, status=404, content_type="text/plain")
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _has_token(request: HttpRequest) -> bool:
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    wanted = settings.METRICS_TOKEN
    return bool(wanted) and hmac.compare_digest(sent.encode(), wanted.encode())


def _is_near(request: HttpRequest) -> bool:
    """The peer, as the web server names it, is in one of the networks."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(network, strict=False) for network in settings.METRICS_NETWORKS)
