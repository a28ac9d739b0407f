"""Probes for a supervisor or load balancer: no sign-in, nothing secret."""

import logging

from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.http import HttpRequest, JsonResponse
from kombu.exceptions import OperationalError

from portal.celery import app

logger = logging.getLogger(__name__)


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@login_not_required
def readyz(request: HttpRequest) -> JsonResponse:
    """Database and broker answer; 503 and the name of what does not otherwise."""
    checks = {"database": _database_answers(), "broker": _broker_answers()}
    ready = all(checks.values())
    return JsonResponse({"status": "ok" if ready else "not ready", "checks": checks}, status=200 if ready else 503)


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
