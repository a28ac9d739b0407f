"""Who is behind what runs now: the request's id and address, and through what its user acts.

Invariant: what a request sets is gone after it, whatever thread it ran in; outside a request the system acts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Origin:
    """Where a change comes from. Filled in as the request is recognised: first its id, then its token or admin."""

    request_id: str = ""
    address: str | None = None
    token_label: str = ""
    """Set where an API token acts for its user."""
    admin_id: str = ""
    """Set where an admin acts: on the admin pages, or as somebody else."""
    admin_label: str = ""
    impersonating: bool = False
    tenant_id: str = ""
    """For the log lines of the request."""
    job_id: str = ""
    """The same: the job the request, or the batch of events, is about."""


_origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


def current_origin() -> Origin:
    """The origin of the request being answered; an empty one outside requests."""
    return _origin.get() or Origin()


@contextmanager
def origin_of_request(origin: Origin) -> Iterator[Origin]:
    """Make ``origin`` the current one. Set back by value: threads that share a request do not share its context."""
    before = _origin.get()
    _origin.set(origin)
    try:
        yield origin
    finally:
        _origin.set(before)


class OriginFilter(logging.Filter):
    """Gives each log record ``request_id``, ``tenant_id`` and ``job_id``, a dash where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        # Django tells of failed requests when they are over, and hands the request along.
        origin = getattr(getattr(record, "request", None), "origin", None) or current_origin()
        record.request_id = origin.request_id or "-"
        record.tenant_id = origin.tenant_id or "-"
        record.job_id = getattr(record, "job_id", "") or origin.job_id or "-"  # a line may name its own
        return True
