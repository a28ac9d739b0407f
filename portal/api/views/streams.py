"""Events as they come, for programs: server-sent events with a cursor."""

from __future__ import annotations

import uuid
from typing import Any, cast

from django.conf import settings
from django.http import StreamingHttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from portal.api.views.base import ERRORS, ApiView, validated
from portal.errors import FieldError, InvalidInput
from portal.live.readers import JobReader, TenantReader
from portal.live.slots import places_of_token
from portal.live.streams import Reader, stream_events
from portal.tenants.models import ApiToken
from portal.tenants.selectors import is_api_token_live

LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID", str, OpenApiParameter.HEADER, description="The id of the last event you have; goes before 'after'."
)
HOW = (
    "Server-sent events: `event` is the type, `data` the event with its `job_id`, `id` the cursor after it. Spans come "
    "only where `type` names them. A comment comes every 15 seconds meanwhile. The last event is `end`; its "
    "`reason` is `finished`, `revoked`, `limit` (too many are open) or `time` (connect again). After a cut, connect "
    "again with the last `id`: "
    "nothing is missed and nothing comes twice."
)


class StreamQuery(serializers.Serializer[Any]):
    after = serializers.CharField(default="", allow_blank=True, max_length=20_000, help_text="The last id you have.")
    type = serializers.CharField(default="", allow_blank=True, help_text="Only these types, separated by commas.")


class StreamedEvent(serializers.Serializer[Any]):
    """The fields of one event of a stream."""

    id = serializers.CharField(required=False, help_text="The cursor after it; the 'end' has none.")
    event = serializers.CharField(help_text="The type of engine.events, or 'end'.")
    # Declared fields are taken off the class, so DRF's own property of this name stays.
    data = serializers.CharField(help_text="JSON: job_id, seq, type, time, payload; of 'end': reason, message.")  # type: ignore[assignment]


class StreamView(ApiView):
    """A GET that ends when its reader is finished, its token revoked or its time over."""

    http_method_names = ["get", "options"]  # answering HEAD would mean to stream to nobody

    def respond(self, reader: Reader) -> Any:
        token = cast(ApiToken, self.request.auth)
        places = places_of_token(token)
        places.take()
        seconds = settings.API_STREAM_SECONDS
        body = stream_events(reader, may_read=lambda: is_api_token_live(token.pk), seconds=seconds, places=places)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the latter: nginx must not hold it back
        return StreamingHttpResponse(body, content_type="text/event-stream", headers=headers)

    def read_query(self) -> tuple[str, dict[str, Any]]:
        """The cursor, and which types of events are meant."""
        query = validated(StreamQuery(data=self.request.query_params))
        types = [name.strip() for name in query["type"].split(",") if name.strip()]
        cursor = self.request.headers.get("Last-Event-ID", "").strip() or query["after"]
        return cursor, {"types": types or None, "exclude": () if types else ("span",)}


class JobEventStreamView(StreamView):
    @extend_schema(
        summary="Stream the events of a job",
        description=f"From the first event on, or after a cursor, which here is a seq. {HOW}",
        parameters=[StreamQuery, LAST_EVENT_ID],
        responses={(200, "text/event-stream"): StreamedEvent, **ERRORS},
    )
    def get(self, request: Request, job_id: uuid.UUID) -> Any:
        cursor, which = self.read_query()
        if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise _no_cursor("is no seq of an event")
        return self.respond(JobReader(self.tenant, job_id, after=int(cursor or 0), **which))


class EventStreamView(StreamView):
    @extend_schema(
        summary="Stream the events of all jobs",
        description=f"From now on, or after a cursor. The events of one job come in order. {HOW}",
        parameters=[StreamQuery, LAST_EVENT_ID],
        responses={(200, "text/event-stream"): StreamedEvent, **ERRORS},
    )
    def get(self, request: Request) -> Any:
        cursor, which = self.read_query()
        try:
            return self.respond(TenantReader(self.tenant, cursor=cursor, **which))
        except ValueError as error:
            raise _no_cursor(str(error)) from None


def _no_cursor(message: str) -> InvalidInput:
    return InvalidInput("The stream was not opened.", fields=[FieldError("after", message)])
