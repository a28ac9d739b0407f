"""Probes for a supervisor or load balancer: no sign-in, nothing secret."""

import logging

from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.http import HttpRequest, JsonResponse
from kombu.exceptions import OperationalError

from portal.celery import app
from portal.ops import sandbox

logger = logging.getLogger(__name__)


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@login_not_required
def readyz(request: HttpRequest) -> JsonResponse:
    """Database and broker answer; 503 and the name of what does not otherwise.

    ``sandbox`` is the level at which tenants' Python is confined; without one it is refused, and all else works.
    """
    checks = {"database": _database_answers(), "broker": _broker_answers()}
    ready = all(checks.values())
    answer = {"status": "ok" if ready else "not ready", "checks": checks, "sandbox": sandbox.level()}
    return JsonResponse(answer, status=200 if ready else 503)


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error as error:
        logger.warning("readyz: the database does not answer: %s", error)
        return False
    return True


def _broker_answers() -> bool:
    try:
        with app.connection_for_write() as broker:
            broker.ensure_connection(max_retries=1, timeout=2)
    except (OperationalError, OSError) as error:
        logger.warning("readyz: the broker does not answer: %s", error)
        return False
    return True
