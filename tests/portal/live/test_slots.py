"""Open streams and sockets are limited for token, user and tenant; nothing that dies keeps its place."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.cache import cache
from django.test import Client

from portal.base_models.services import ensure_bundled_base_model
from portal.errors import TooMany
from portal.live import slots
from portal.live.consumers import CLOSE_TOO_MANY
from portal.live.slots import Places, Scope
from portal.tenants.models import Scope as TokenScope
from portal.tenants.services import create_api_token
from tests.portal.api.test_streams import Stream
from tests.portal.factories import Owned, build_owned
from tests.portal.live.test_consumers import connect

SCOPE = Scope("streams_per_user", "7", "A user", 2)


# --- places ----------------------------------------------------------------------------------------------------------


def test_places_are_given_back() -> None:
    first, second, third = (Places([SCOPE]) for _ in range(3))
    first.take()
    second.take()
    with pytest.raises(TooMany, match="A user may have 2 event streams and WebSockets open at once") as refused:
        third.take()
    found = refused.value.limit
    assert found is not None and (found.kind, found.limit, found.retry_after) == ("streams_per_user", 2, 30)
    first.release()
    first.release()
    third.take()
    Places([Scope("streams_per_user", "8", "A user", 1)]).take()  # another's


def test_where_one_limit_refuses_nothing_is_held_of_the_others() -> None:
    full, free = Scope("streams_per_tenant", "1", "A tenant", 0), Scope("streams_per_user", "9", "A user", 1)
    with pytest.raises(TooMany, match="A tenant"):
        Places([free, full]).take()
    Places([free]).take()


def test_the_place_of_a_server_that_died_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "LEASE_SECONDS", 0.2)
    one = Scope("streams_per_user", "10", "A user", 1)
    Places([one]).take()  # and never heard of again
    with pytest.raises(TooMany):
        Places([one]).take()
    threading.Event().wait(0.3)
    Places([one]).take()


def test_a_stream_that_lives_keeps_its_place_and_finds_another_where_it_lost_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "RENEW_SECONDS", 0)
    one = Scope("streams_per_user", "11", "A user", 1)
    living = Places([one])
    living.take()
    cache.clear()
    assert living.keep()
    with pytest.raises(TooMany):
        Places([one]).take()
    cache.clear()
    other = Places([one])
    other.take()
    assert not living.keep(), "somebody else has it now"
    living.release()
    assert other.keep(), "what is another's is not given back"


def test_no_two_share_the_last_place() -> None:
    scope = Scope("streams_per_tenant", "12", "A tenant", 3)
    barrier, outcomes = threading.Barrier(8), []

    def run() -> None:
        barrier.wait()
        try:
            Places([scope]).take()
            outcomes.append("open")
        except TooMany:
            outcomes.append("refused")

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["open"] * 3 + ["refused"] * 5


# --- sockets and streams ---------------------------------------------------------------------------------------------


def prepare() -> tuple[Owned, Client, str]:
    ensure_bundled_base_model()
    ours = build_owned("ours")
    client = Client()
    client.force_login(ours.user, backend="django.contrib.auth.backends.ModelBackend")
    _, secret = create_api_token(tenant=ours.tenant, user=ours.user, name="t", scopes=[TokenScope.READ])
    return ours, client, secret


@pytest.mark.django_db(transaction=True)
async def test_a_socket_too_many_is_told_why_and_one_that_goes_makes_room(settings: Any) -> None:
    settings.MAX_STREAMS_PER_USER = 1
    _, client, _ = await sync_to_async(prepare)()
    first = await connect("/ws/jobs/", client)
    await first.receive()
    second = await connect("/ws/jobs/", client)
    message = await second.receive_output(10)
    assert (message["type"], message["code"]) == ("websocket.close", CLOSE_TOO_MANY)
    assert message["reason"].startswith("streams_per_user: 1 are open, the limit.")
    assert "try again in 30 seconds" in message["reason"] and len(message["reason"].encode()) <= 123
    await second.disconnect()
    await first.disconnect()
    third = await connect("/ws/jobs/", client)
    await third.receive()
    await third.disconnect()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["token", "user", "tenant"])
async def test_a_stream_too_many_is_told_which_limit_and_when(settings: Any, kind: str) -> None:
    setattr(settings, f"MAX_STREAMS_PER_{kind.upper()}", 1)
    settings.API_STREAM_SECONDS = 60
    ours, _, secret = await sync_to_async(prepare)()
    path = f"/api/v1/jobs/{ours.job.pk}/events/stream/?after=3"
    first = Stream(path, secret)
    assert await first.open() == 200
    await first.block()
    refused = Stream(path, secret)
    assert await refused.open() == 429
    assert refused.headers["retry-after"] == "30"
    body = await refused.communicator.receive_output(10)
    error = json.loads(body["body"])["error"]
    assert (error["code"], error["limit"]["kind"], error["limit"]["limit"]) == (
        "rate_limited",
        f"streams_per_{kind}",
        1,
    )
    await first.close()
    again = Stream(path, secret)
    assert await again.open() == 200
    await again.close()
