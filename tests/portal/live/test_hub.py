"""Pages read once for many sockets: each gets what it lacks, in order, each event once."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from portal.base_models.services import ensure_bundled_base_model
from portal.jobs.models import Job
from portal.jobs.selectors import read_news, summarize_job
from portal.jobs.services import ingest_events
from portal.live import consumers, hub, pages
from portal.live.hub import get_hub
from portal.live.pages import JobPage, read_pages
from tests.portal.factories import Owned, build_owned, make_batch, rollout, span, status
from tests.portal.websocket import Socket

pytestmark = pytest.mark.django_db(transaction=True)

ingest = sync_to_async(ingest_events)


@pytest.fixture
def ours(transactional_db) -> Owned:
    ensure_bundled_base_model()
    return build_owned("ours")


@pytest.fixture
def session(ours) -> Client:
    client = Client()
    client.force_login(ours.user, backend="django.contrib.auth.backends.ModelBackend")
    return client


async def connect(path: str, client: Client) -> Socket:
    socket = Socket(path, client)
    assert await socket.connect()
    return socket


def test_a_page_says_what_a_read_of_its_own_says(ours):
    text = 'ä "quoted" \\ 🙂 \n'
    ingest_events(batch=make_batch(ours.job, rollout(2, completion=text), span(), status("running", "On."), first=4))
    job = Job.objects.get(pk=ours.job.pk)
    for wants_spans in (False, True):
        page = read_pages([job.pk], {job.pk: 2}, [job.pk] if wants_spans else []).pages[job.pk]
        for after in (2, 3, 5, 6, 9):
            own = read_news(ours.tenant, job.pk, after=after, limit=99, exclude=() if wants_spans else ("span",))
            message = json.loads(page.render(after, wants_spans=wants_spans))
            assert message == {"events": own.events, "job": summarize_job(own.job), "last_seq": own.last_seq}
            assert page.fits(after, wants_spans=wants_spans)
        assert not page.fits(1, wants_spans=wants_spans)
        assert page.fits(2, wants_spans=True) == wants_spans


def test_equal_needs_share_one_text():
    page = JobPage(3, 4, {"last_seq": 4}, [(4, "notice", "{}")], has_spans=True, more=False)
    assert page.render(3, wants_spans=False) is page.render(3, wants_spans=False)


def test_a_read_costs_a_statement_for_all_jobs_and_one_for_each_shown(ours, theirs_job, django_assert_num_queries):
    with django_assert_num_queries(2):
        news = read_pages([ours.job.pk, theirs_job.pk], {ours.job.pk: 0}, [])
    assert set(news.pages) == {ours.job.pk}
    assert {tenant: [job["id"] for job in json.loads(text)["jobs"]] for tenant, text in news.lists.items()} == {
        ours.tenant.pk: [str(ours.job.pk)],
        theirs_job.tenant_id: [str(theirs_job.pk)],
    }


@pytest.fixture
def theirs_job(ours) -> Job:
    return build_owned("theirs").job


async def test_sockets_at_different_places_each_get_what_they_lack(ours, session, monkeypatch):
    """Pages of two events, sockets with and without spans, one that says it is ahead."""
    monkeypatch.setattr(pages, "PAGE_EVENTS", 2)
    queries = ("", "?after=3", "?after=3&spans=1", "?after=5")
    sockets = [await connect(f"/ws/jobs/{ours.job.pk}/{query}", session) for query in queries]
    seen: list[list[int]] = [[event["seq"] for event in (await socket.receive())["events"]] for socket in sockets]
    assert seen == [[1, 2, 3], [], [], []]
    await ingest(batch=make_batch(ours.job, rollout(2), span(), *[rollout(2)] * 6, first=4))
    for socket, found in zip(sockets, seen, strict=True):
        while not found or found[-1] < 11:
            found += [event["seq"] for event in (await socket.receive(timeout=30))["events"]]
    shown = [4, 6, 7, 8, 9, 10, 11]
    assert seen == [[1, 2, 3, *shown], shown, list(range(4, 12)), shown[1:]]
    for socket in sockets:
        await socket.disconnect()


async def test_a_slow_client_reads_for_itself(ours, session, monkeypatch):
    """It gets everything once, although the pages that piled up were dropped."""
    monkeypatch.setattr(consumers, "MOST_WAITING", 1)
    monkeypatch.setattr(hub, "PAUSE_SECONDS", 0)
    blocked = asyncio.Event()
    send_page = consumers.JobConsumer.send_page

    async def send_late(self, page):
        await blocked.wait()
        await send_page(self, page)

    monkeypatch.setattr(consumers.JobConsumer, "send_page", send_late)
    socket = await connect(f"/ws/jobs/{ours.job.pk}/?after=3", session)
    await socket.receive()
    for seq in range(4, 10):
        await ingest(batch=make_batch(ours.job, rollout(2), first=seq))
        await asyncio.sleep(0.05)
    blocked.set()
    seen: list[int] = []
    while not seen or seen[-1] < 9:
        seen += [event["seq"] for event in (await socket.receive(timeout=30))["events"]]
    assert seen == list(range(4, 10))
    await socket.disconnect()


async def test_the_hub_rests_while_nobody_listens(ours, session):
    socket = await connect(f"/ws/jobs/{ours.job.pk}/", session)
    await socket.receive()
    listening = list(get_hub()._tasks)
    assert len(listening) == 2
    await socket.disconnect()
    assert all(task.done() for task in listening)
    assert not get_hub()._tasks
    socket = await connect(f"/ws/jobs/{ours.job.pk}/?after=3", session)
    await socket.receive()
    await ingest(batch=make_batch(ours.job, rollout(2), first=4))
    assert [event["seq"] for event in (await socket.receive())["events"]] == [4]
    await socket.disconnect()
