"""Events as plain rows on their way into and out of ``JobEvent``: a model object for each would cost more than all
that is done with it.

Invariant: a payload of a ``StoredEvent`` is what a read of the table gives, so a projection of events that have just
been stored equals one of events read back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db.models import F, QuerySet
from pydantic_core import PydanticSerializationError

from engine.events import EventBatch
from portal.bulk import insert_rows
from portal.jobs.models import Job, JobEvent
from portal.json_values import make_storable

COLUMNS = ("job", "seq", "type", "time", "payload")


class StoredEvent(NamedTuple):
    """A row of ``JobEvent``."""

    job_id: uuid.UUID
    seq: int
    type: str
    time: datetime
    payload: dict[str, Any]


def to_stored(batch: EventBatch) -> list[StoredEvent]:
    """A batch as it is stored, characters no database takes replaced."""
    clean = _is_storable(batch)
    return [
        StoredEvent(
            uuid.UUID(hex=event["job_id"]),
            event["seq"],
            event["payload"]["type"],
            datetime.fromtimestamp(event["time"], tz=UTC),
            event["payload"] if clean else make_storable(event["payload"]),
        )
        for event in batch.model_dump()["events"]
    ]


def _is_storable(batch: EventBatch) -> bool:
    """Whether no text of the batch needs a look: one pass over its JSON instead of one over every value."""
    try:
        return "\\u0000" not in batch.model_dump_json()
    except PydanticSerializationError:  # half a surrogate pair
        return False


def store_events(events: Iterable[StoredEvent]) -> None:
    """Append what is not stored yet; an event that is stays as it is."""
    insert_rows(JobEvent, COLUMNS, events, ignore_conflicts=True)


def jobs_with_a_gap(jobs: Iterable[Job]) -> set[uuid.UUID]:
    """Those of which events above ``last_seq`` are stored already."""
    beyond = JobEvent.objects.filter(job__in=list(jobs), seq__gt=F("job__last_seq"))
    return set(beyond.order_by().values_list("job_id", flat=True).distinct())


def read_stored(events: QuerySet[JobEvent], *, at_once: int) -> Iterator[StoredEvent]:
    """These events in order of seq, ``at_once`` of them in memory."""
    rows = events.order_by("seq").values_list("job_id", "seq", "type", "time", "payload")
    return (StoredEvent(*row) for row in rows.iterator(chunk_size=at_once))
