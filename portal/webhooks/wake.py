"""Telling the deliveries worker that there is something to send. It looks by itself every few seconds, so a message
that does not arrive only delays."""

from __future__ import annotations

import logging

from kombu.exceptions import OperationalError

from portal.celery import DELIVERIES_QUEUE, app

logger = logging.getLogger(__name__)

DELIVER = "portal.deliver"
WAKE_EXPIRES_SECONDS = 30


def wake_deliveries() -> None:
    try:
        app.send_task(DELIVER, queue=DELIVERIES_QUEUE, retry=False, expires=WAKE_EXPIRES_SECONDS)
    except OperationalError as error:
        logger.warning("The broker cannot be reached, messages go out at the worker's next look: %s", error)
