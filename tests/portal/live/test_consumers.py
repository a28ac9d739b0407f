"""Sockets: nothing missed, nothing doubled, nothing foreign."""

from __future__ import annotations

import asyncio
import json
import uuid
from urllib.parse import quote

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import Client

from engine.events import EventBatch
from portal.base_models.services import ensure_bundled_base_model
from portal.jobs.models import Job
from portal.jobs.services import cancel_job, extend_job, ingest_events, pause_job, set_priority
from portal.live import consumers
from portal.live.consumers import CLOSE_NOT_FOUND, CLOSE_SIGNED_OUT, JobConsumer
from portal.tenants.models import Membership
from portal.tenants.services import add_member, switch_tenant
from tests.portal.factories import Owned, build_owned, make_batch, make_events, rollout, span, status
from tests.portal.websocket import Socket

pytestmark = pytest.mark.django_db(transaction=True)

BACKEND = "django.contrib.auth.backends.ModelBackend"


@pytest.fixture
def ours(transactional_db) -> Owned:
    ensure_bundled_base_model()
    return build_owned("ours")


@pytest.fixture
def theirs(transactional_db) -> Owned:
    ensure_bundled_base_model()
    return build_owned("theirs")


@pytest.fixture
def session(ours) -> Client:
    client = Client()
    client.force_login(ours.user, backend=BACKEND)
    return client


async def connect(path: str, client: Client | None) -> Socket:
    socket = Socket(path, client)
    assert await socket.connect()
    return socket


async def close_code(path: str, client: Client | None) -> int:
    return await (await connect(path, client)).receive_close()


ingest = sync_to_async(ingest_events)


async def test_backlog_then_news(ours, session):
    socket = await connect(f"/ws/jobs/{ours.job.pk}/", session)
    first = await socket.receive()
    assert [event["seq"] for event in first["events"]] == [1, 2, 3]
    assert (first["last_seq"], first["job"]["status"], first["job"]["step"]) == (3, "running", 1)
    await ingest(batch=make_batch(ours.job, rollout(2), status("succeeded", "Done."), first=4))
    second = await socket.receive()
    assert [event["seq"] for event in second["events"]] == [4, 5]
    assert second["events"][0]["payload"]["prompt"] == "1+1?"
    assert (second["last_seq"], second["job"]["status"], second["job"]["finished"]) == (5, "succeeded", True)
    await ingest(batch=make_batch(ours.job, rollout(2), status("succeeded", "Done."), first=4))
    assert await socket.receive_nothing()
    await socket.disconnect()


async def test_resuming_sends_exactly_what_is_new(ours, session):
    socket = await connect(f"/ws/jobs/{ours.job.pk}/?after=2", session)
    message = await socket.receive()
    assert [event["seq"] for event in message["events"]] == [3]
    await socket.disconnect()


@pytest.mark.parametrize("after", ["3", "99"])
async def test_resuming_with_nothing_new_sends_the_state(ours, session, after):
    socket = await connect(f"/ws/jobs/{ours.job.pk}/?after={after}", session)
    message = await socket.receive()
    assert (message["events"], message["last_seq"]) == ([], int(after))
    assert message["job"]["status"] == "running"
    await socket.disconnect()


@pytest.mark.parametrize("after", ["", "-1", "x", "1.5", "9" * 30, "²"])
async def test_a_cursor_that_is_none_means_everything(ours, session, after):
    socket = await connect(f"/ws/jobs/{ours.job.pk}/?after={quote(after)}", session)
    assert len((await socket.receive())["events"]) == 3
    await socket.disconnect()


async def test_long_backlogs_come_in_pages(ours, session, monkeypatch):
    monkeypatch.setattr(consumers, "PAGE_EVENTS", 10)
    await ingest(batch=make_batch(ours.job, *[rollout(2)] * 22, first=4))
    socket = await connect(f"/ws/jobs/{ours.job.pk}/", session)
    pages = [await socket.receive() for _ in range(3)]
    assert [len(page["events"]) for page in pages] == [10, 10, 5]
    assert [event["seq"] for page in pages for event in page["events"]] == list(range(1, 26))
    assert await socket.receive_nothing()
    await socket.disconnect()


@pytest.mark.parametrize(("query", "types"), [("", ["rollout"]), ("&spans=1", ["span", "rollout", "span"])])
async def test_spans_only_on_request(ours, session, query, types):
    await ingest(batch=make_batch(ours.job, span(), rollout(2), span(), first=4))
    socket = await connect(f"/ws/jobs/{ours.job.pk}/?after=3{query}", session)
    message = await socket.receive()
    assert [event["type"] for event in message["events"]] == types
    assert message["last_seq"] == 6
    await socket.disconnect()


async def test_every_event_once_while_batches_race_with_reading(ours, session):
    """Batches of one event, out of order in pairs, arrive while the socket connects and reads."""
    events = make_events(ours.job, *[rollout(2)] * 40, first=4)
    events = [event for pair in zip(events[1::2], events[::2], strict=True) for event in pair]

    async def produce():
        for event in events:
            await ingest(batch=EventBatch(events=[event]))

    producing = asyncio.create_task(produce())
    socket = await connect(f"/ws/jobs/{ours.job.pk}/", session)
    seen = []
    while len(seen) < 43:
        seen += [event["seq"] for event in (await socket.receive(timeout=30))["events"]]
    await producing
    assert seen == list(range(1, 44))
    assert await socket.receive_nothing()
    await socket.disconnect()


async def test_what_comes_right_after_the_backlog_was_read_is_sent(ours, session, monkeypatch):
    read_backlog = JobConsumer.send_first

    async def read_backlog_then_more(self: JobConsumer) -> None:
        await read_backlog(self)
        await ingest(batch=make_batch(ours.job, rollout(2), first=4))

    monkeypatch.setattr(JobConsumer, "send_first", read_backlog_then_more)
    socket = await connect(f"/ws/jobs/{ours.job.pk}/?after=3", session)
    assert (await socket.receive())["events"] == []
    assert [event["seq"] for event in (await socket.receive())["events"]] == [4]
    await socket.disconnect()


@pytest.mark.parametrize(
    ("service", "wanted"),
    [(cancel_job, {}), (pause_job, {}), (set_priority, {"priority": 2}), (extend_job, {"steps": 9})],
)
async def test_what_is_asked_for_shows_without_an_event(ours, session, service, wanted):
    socket = await connect(f"/ws/jobs/{ours.job.pk}/", session)
    assert (await socket.receive())["job"]["control"]["revision"] == 0
    await sync_to_async(service)(tenant=ours.tenant, user=ours.user, job_id=ours.job.pk, **wanted)
    message = await socket.receive()
    assert message["events"] == []
    assert message["job"]["control"]["revision"] == 1
    await socket.disconnect()


async def test_a_lost_wake_up_is_made_up_for(ours, session, monkeypatch):
    monkeypatch.setattr(consumers, "REFRESH_SECONDS", 0.05)
    socket = await connect(f"/ws/jobs/{ours.job.pk}/", session)
    await socket.receive()
    monkeypatch.setattr("portal.jobs.services.wake_readers", lambda jobs: None)
    await ingest(batch=make_batch(ours.job, rollout(2), first=4))
    assert [event["seq"] for event in (await socket.receive(timeout=10))["events"]] == [4]
    await socket.disconnect()


@pytest.mark.parametrize("path", ["/ws/jobs/", "/ws/jobs/{}/"])
async def test_a_socket_without_news_says_that_it_lives(ours, session, monkeypatch, path):
    """By this a page tells a quiet job from a network that died."""
    monkeypatch.setattr(consumers, "REFRESH_SECONDS", 0.05)
    socket = await connect(path.format(ours.job.pk), session)
    await socket.receive()
    beats = 0
    while beats < 2:
        message = await socket.receive_output(10)
        beats += json.loads(message["text"]) == {"alive": True}
    await socket.disconnect()


async def test_waiting_holds_no_database_connection(ours, session):
    socket = await connect(f"/ws/jobs/{ours.job.pk}/", session)
    await socket.receive()
    assert await socket.receive_nothing()

    def is_open():
        return connection.connection is not None

    # The thread the socket's reads ran in: channels closes what it opened.
    assert not await sync_to_async(is_open)()
    await socket.disconnect()


async def test_foreign_jobs_are_not_found(ours, theirs, session):
    assert await close_code(f"/ws/jobs/{theirs.job.pk}/", session) == CLOSE_NOT_FOUND
    assert await close_code(f"/ws/jobs/{uuid.uuid4()}/", session) == CLOSE_NOT_FOUND


async def test_foreign_news_wake_nobody(ours, theirs, session):
    own, listed = await connect(f"/ws/jobs/{ours.job.pk}/", session), await connect("/ws/jobs/", session)
    await own.receive()
    assert [job["id"] for job in (await listed.receive())["jobs"]] == [str(ours.job.pk)]
    await ingest(batch=make_batch(theirs.job, status("succeeded", "Done."), first=4))
    assert await own.receive_nothing()
    assert await listed.receive_nothing()
    await own.disconnect()
    await listed.disconnect()


@pytest.mark.parametrize("path", ["/ws/jobs/", "/ws/jobs/00000000-0000-0000-0000-000000000000/"])
async def test_visitors_are_signed_out(transactional_db, path):
    assert await close_code(path, None) == CLOSE_SIGNED_OUT


async def test_other_origins_are_refused(ours, session):
    assert not await Socket(f"/ws/jobs/{ours.job.pk}/", session, origin="http://evil.example").connect()


@pytest.mark.parametrize("leave", ["sign out", "leave the tenant"])
async def test_who_leaves_is_cut_off(ours, session, monkeypatch, leave):
    monkeypatch.setattr(consumers, "REFRESH_SECONDS", 0.05)
    socket = await connect(f"/ws/jobs/{ours.job.pk}/", session)
    await socket.receive()
    if leave == "sign out":
        await sync_to_async(session.logout)()
    else:
        await sync_to_async(Membership.objects.all().delete)()
    assert await socket.receive_close() == CLOSE_SIGNED_OUT


async def test_the_list_shows_changes(ours, session):
    socket = await connect("/ws/jobs/", session)
    assert [job["status"] for job in (await socket.receive())["jobs"]] == ["running"]
    await ingest(batch=make_batch(ours.job, status("succeeded", "Done."), first=4))
    assert [job["status"] for job in (await socket.receive())["jobs"]] == ["succeeded"]
    await socket.disconnect()


async def test_the_chosen_tenant_counts(ours, theirs, session):
    await sync_to_async(add_member)(tenant=theirs.tenant, user=ours.user)

    def choose():
        store = session.session
        switch_tenant(user=ours.user, session=store, tenant_id=theirs.tenant.pk)
        store.save()

    await sync_to_async(choose)()
    assert await close_code(f"/ws/jobs/{ours.job.pk}/", session) == CLOSE_NOT_FOUND
    socket = await connect(f"/ws/jobs/{theirs.job.pk}/", session)
    assert (await socket.receive())["job"]["id"] == str(theirs.job.pk)
    await socket.disconnect()


async def test_a_job_that_vanishes_leaves_the_list_alone(ours, session):
    socket = await connect("/ws/jobs/", session)
    await socket.receive()
    await sync_to_async(Job.objects.all().delete)()
    assert await socket.receive_nothing()
    await socket.disconnect()
