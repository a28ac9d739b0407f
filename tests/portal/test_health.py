"""Probes: what a load balancer and an operator read."""

import json
from collections import namedtuple
from datetime import timedelta

import pytest
from django.utils import timezone
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError

from portal.engine_room.models import EngineState
from portal.engine_room.services import store_report
from portal.engine_room.tasks import beat
from tests.portal.engine_room.conftest import make_report

Usage = namedtuple("Usage", "total used free")


def ready(client):
    answer = client.get("/readyz")
    body = answer.json()
    return answer.status_code, body["status"], {name for name, check in body["checks"].items() if not check["ok"]}


@pytest.fixture
def whole(db, settings):
    """An installation in which everything works."""
    (settings.MARLAAS_VAR / "sandbox.json").write_text(json.dumps({"level": "landlock", "attacks": []}))
    store_report(report=make_report())
    beat()


def test_all_is_well(client, whole):
    assert ready(client) == (200, "ok", set())
    assert client.get("/healthz").json() == {"status": "ok"}


def test_without_the_engine_the_portal_serves_and_says_so(client, whole):
    EngineState.objects.update(heard_at=timezone.now() - timedelta(hours=1))
    assert ready(client) == (200, "degraded", {"engine"})
    assert "since" in client.get("/readyz").json()["checks"]["engine"]["detail"]


def test_at_the_very_start(client, db):
    assert ready(client) == (200, "degraded", {"engine", "events_worker", "sandbox"})


def test_the_level_of_the_sandbox(client, whole, settings):
    for text, level in (('{"level": "none"}', "none"), ("cut off {", "unknown")):
        (settings.MARLAAS_VAR / "sandbox.json").write_text(text)
        assert ready(client) == (200, "degraded", {"sandbox"})
        assert client.get("/readyz").json()["sandbox"] == level


def test_without_a_broker_it_is_not_ready(client, whole, monkeypatch):
    def refuse(*args, **kwargs):
        raise OperationalError("connection refused")

    monkeypatch.setattr("portal.health.app.connection_for_write", refuse)
    assert ready(client) == (503, "not ready", {"broker"})
    assert client.get("/healthz").status_code == 200


def test_without_a_channel_layer_it_is_not_ready(client, whole, monkeypatch):
    async def refuse(*args, **kwargs):
        raise RedisConnectionError("secret-host refused")

    monkeypatch.setattr("channels.layers.InMemoryChannelLayer.send", refuse)
    assert ready(client) == (503, "not ready", {"channel_layer"})
    assert "secret-host" not in client.get("/readyz").content.decode()


def test_a_full_disk(client, whole, monkeypatch):
    monkeypatch.setattr("portal.health.shutil.disk_usage", lambda path: Usage(10**12, 10**12, 10**6))
    assert ready(client) == (503, "not ready", {"disk"})
    monkeypatch.setattr("portal.health.shutil.disk_usage", lambda path: Usage(10**12, 10**12, 10**9))
    assert ready(client) == (200, "ok", set())
    assert "nearly full" in client.get("/readyz").json()["checks"]["disk"]["detail"]
