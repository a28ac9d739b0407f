"""Event streams over the real ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.db.backends.signals import connection_created
from django.test import Client

from engine.events import StatusChanged
from portal.asgi import application
from portal.base_models.services import ensure_bundled_base_model
from portal.jobs.services import create_job, ingest_events
from portal.live import streams
from portal.tenants.models import Scope
from portal.tenants.services import create_api_token, revoke_api_token
from tests.portal.factories import Owned, build_owned, make_batch, rollout, span, status, step

pytestmark = pytest.mark.django_db(transaction=True)


class Stream:
    """One connection; ``events`` as (id, event, data)."""

    def __init__(self, path: str, secret: str, last_id: str = "") -> None:
        address, _, query = path.partition("?")
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {secret}".encode())]
        headers += [(b"last-event-id", last_id.encode())] if last_id else []
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": address,
            "raw_path": address.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
            "scheme": "http",
        }
        self.communicator = ApplicationCommunicator(application, scope)
        self.buffer = ""
        self.comments = 0
        self.closed = False

    async def open(self) -> int:
        await self.communicator.send_input({"type": "http.request", "body": b""})
        start = await self.communicator.receive_output(10)
        self.headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return int(start["status"])

    async def block(self) -> str | None:
        """The next block of lines, or None at the end."""
        while "\n\n" not in self.buffer:
            if self.closed:
                return None
            part = await self.communicator.receive_output(10)
            self.buffer += part.get("body", b"").decode()
            self.closed = not part.get("more_body", False)
        found, _, self.buffer = self.buffer.partition("\n\n")
        return found

    async def next(self) -> tuple[str, str, dict[str, Any]] | None:
        while (block := await self.block()) is not None:
            if block.startswith(":"):
                self.comments += 1
                continue
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if "data" in fields:
                return fields.get("id", ""), fields["event"], json.loads(fields["data"])
        return None

    async def close(self) -> None:
        await self.communicator.send_input({"type": "http.disconnect"})
        await self.communicator.wait(10)


@asynccontextmanager
async def opened(*args: Any) -> AsyncIterator[Stream]:
    stream = Stream(*args)
    assert await stream.open() == 200
    yield stream
    await stream.close()


@pytest.fixture(autouse=True)
def endless(settings: Any) -> None:
    settings.API_STREAM_SECONDS = 60


def prepare(name: str = "ours") -> tuple[Owned, str]:
    ensure_bundled_base_model()
    ours = build_owned(name)
    _, secret = create_api_token(tenant=ours.tenant, user=ours.user, name="t", scopes=[Scope.READ])
    return ours, secret


async def feed(owned: Owned, *payloads: Any, first: int) -> None:
    await sync_to_async(ingest_events)(batch=make_batch(owned.job, *payloads, first=first))


async def take(stream: Stream, count: int) -> list[tuple[str, str, dict[str, Any]]]:
    found = [await stream.next() for _ in range(count)]
    assert None not in found
    return found  # type: ignore[return-value]


def job_path(owned: Owned, query: str = "") -> str:
    return f"/api/v1/jobs/{owned.job.pk}/events/stream/{query}"


async def test_a_job_from_its_first_event_to_its_end() -> None:
    ours, secret = await sync_to_async(prepare)()
    async with opened(job_path(ours), secret) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        assert [event for _, event, _ in await take(stream, 3)] == ["status", "step", "adapter"]
        await feed(ours, rollout(2), span(), step(2), first=4)
        (four, event, data), (six, *_) = await take(stream, 2)  # the span is left out
        assert (four, event, six) == ("4", "rollout", "6")
        assert data["job_id"] == str(ours.job.pk) and data["payload"]["prompt"] == "1+1?"
        await feed(ours, status("succeeded", "Done."), first=7)
        (seven, *_), (_, end, why) = await take(stream, 2)
        assert (seven, end, why["reason"]) == ("7", "end", "finished")
        assert await stream.next() is None


async def test_a_cursor_by_query_and_by_header() -> None:
    ours, secret = await sync_to_async(prepare)()
    async with opened(job_path(ours, "?after=2"), secret) as stream:
        assert (await take(stream, 1))[0][0] == "3"
    async with opened(job_path(ours, "?after=0"), secret, "1") as stream:
        assert (await take(stream, 1))[0][0] == "2"
    await feed(ours, span(), first=4)
    async with opened(job_path(ours, "?type=span,step"), secret) as stream:
        assert [seq for seq, _, _ in await take(stream, 2)] == ["2", "4"]


async def test_a_revoked_token_gets_nothing_more() -> None:
    ours, secret = await sync_to_async(prepare)()
    async with opened(job_path(ours, "?after=3"), secret) as stream:
        assert (await stream.block() or "").startswith("retry")
        token = await sync_to_async(ours.tenant.api_tokens.get)()
        await sync_to_async(revoke_api_token)(tenant=ours.tenant, user=ours.user, token_id=token.pk)
        await feed(ours, step(2), first=4)
        _, event, why = (await take(stream, 1))[0]
        assert (event, why["reason"]) == ("end", "revoked")
        assert await stream.next() is None


async def test_a_heartbeat_finds_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.05)
    ours, secret = await sync_to_async(prepare)()
    async with opened(job_path(ours, "?after=3"), secret) as stream:
        assert (await stream.block() or "").startswith("retry")
        assert await stream.block() == ": nothing new"
        await sync_to_async(ours.tenant.memberships.all().delete)()
        assert (await take(stream, 1))[0][2]["reason"] == "revoked"


async def test_a_lost_wake_up_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr("portal.jobs.services.wake_readers", lambda jobs: None)
    ours, secret = await sync_to_async(prepare)()
    async with opened(job_path(ours, "?after=3"), secret) as stream:
        await stream.block()
        await feed(ours, step(2), first=4)
        assert (await take(stream, 1))[0][0] == "4"


async def test_waiting_holds_no_database_connection() -> None:
    ours, secret = await sync_to_async(prepare)()
    made: list[Any] = []
    note = lambda connection, **kwargs: made.append(connection)  # noqa: E731 (a signal's receiver, kept below)
    connection_created.connect(note)
    try:
        async with opened(job_path(ours, "?after=3"), secret) as stream:
            await stream.block()
            for _ in range(100):  # until the first read is over and the stream waits
                await asyncio.sleep(0.2)
                held = [wrapper for wrapper in made if wrapper.connection is not None]
                if made and not held:
                    break
            assert made and held == []
            await feed(ours, step(2), first=4)
            await take(stream, 1)
    finally:
        connection_created.disconnect(note)


async def test_a_tenant_streams_all_its_jobs_from_now_on() -> None:
    ours, secret = await sync_to_async(prepare)()
    theirs, _ = await sync_to_async(prepare)("theirs")
    async with opened("/api/v1/events/stream/", secret) as stream:
        await stream.block()
        await feed(theirs, step(2), first=4)
        await feed(ours, step(2), first=4)
        second = await sync_to_async(another_job)(ours)
        await sync_to_async(ingest_events)(batch=make_batch(second, status("running", "Training.")))
        found = await take(stream, 2)
        assert {(data["job_id"], data["seq"]) for _, _, data in found} == {
            (str(ours.job.pk), 4),
            (str(second.pk), 1),
        }
        cursor = found[-1][0]
    await feed(ours, StatusChanged(status="succeeded", reason="Done."), first=5)
    async with opened("/api/v1/events/stream/", secret, cursor) as stream:
        _, event, data = (await take(stream, 1))[0]
        assert (event, data["job_id"], data["seq"]) == ("status", str(ours.job.pk), 5)


def another_job(owned: Owned) -> Any:
    return create_job(
        tenant=owned.tenant,
        user=owned.user,
        name="second job",
        base_model_id=owned.job.base_model_id,
        dataset_version=owned.dataset_version,
        reward_version=owned.reward_version,
        settings={"training": {"steps": 2}},
    )


@pytest.mark.parametrize(
    "path", ["/api/v1/events/stream/?after=x", "/api/v1/events/stream/?after=1:0", "jobs/?after=-1", "jobs/?after=1.5"]
)
def test_faulty_cursors(path: str) -> None:
    ours, secret = prepare()
    path = job_path(ours, path.removeprefix("jobs/")) if path.startswith("jobs/") else path
    answer = Client(headers={"Authorization": f"Bearer {secret}", "Accept": "text/event-stream"}).get(path)
    assert answer.status_code == 400
    assert answer.json()["error"]["fields"][0]["field"] == "after"


def test_foreign_jobs_and_missing_tokens() -> None:
    ours, secret = prepare()
    theirs, _ = prepare("theirs")
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    assert client.get(job_path(theirs)).status_code == 404
    assert Client().get(job_path(ours)).status_code == 401
    assert client.head(job_path(ours)).status_code == 405
