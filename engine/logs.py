"""Log lines of the engine's processes: text, or one JSON object a line where ``LOG_FORMAT=json``, with the job's id.

The id comes along by context: whatever a job's coroutine starts logs under it.
"""

from __future__ import annotations

import logging
import os
from contextvars import ContextVar

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

job_id: ContextVar[str] = ContextVar("job_id", default="")
"""Of the job that runs here."""

TEXT = "%(asctime)s %(name)s %(levelname)s [%(job_id)s] %(message)s"
FIELDS = "%(asctime)s %(levelname)s %(name)s %(message)s %(job_id)s"


class JobFilter(logging.Filter):
    """Gives each record ``job_id``, a dash where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.job_id = job_id.get() or "-"
        return True


def configure_logging() -> None:
    """Log to stderr, from the level ``LOG_LEVEL`` on. Called once in each process of ours; again it does nothing."""
    root = logging.getLogger()
    if any(isinstance(found, JobFilter) for handler in root.handlers for found in handler.filters):
        return
    handler = logging.StreamHandler()
    handler.addFilter(JobFilter())
    handler.setFormatter(json_formatter() if os.environ.get("LOG_FORMAT") == "json" else logging.Formatter(TEXT))
    root.addHandler(handler)
    for busy in ("celery.app.trace", "celery.worker.strategy"):  # a line or two for each message; failures stay
        logging.getLogger(busy).setLevel(logging.WARNING)
    root.setLevel(os.environ.get("LOG_LEVEL", "INFO"))


def json_formatter() -> JsonFormatter:
    """One object a line: time, level, logger, message, job_id."""
    renamed = {"asctime": "time", "levelname": "level", "name": "logger"}
    # What Celery adds of a message's arguments may be tenants' data.
    return JsonFormatter(FIELDS, rename_fields=renamed, reserved_attrs=[*RESERVED_ATTRS, "data"])
