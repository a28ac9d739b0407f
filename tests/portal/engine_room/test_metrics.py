"""/metrics, and what it counts."""

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from engine.spec import ENGINE_QUEUE
from portal.base_models.services import BUNDLED_ID
from portal.celery import app
from portal.engine_room.tasks import beat
from tests.portal.engine_room.conftest import sign_in
from tests.portal.websocket import Socket


def samples(answer):
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.content.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_who_may_read(db, settings, browser, looker):
    assert Client().get("/metrics").status_code == 404
    assert browser.get("/metrics").status_code == 404, "members may not"
    assert sign_in(looker).get("/metrics").status_code == 200
    assert Client(headers={"Authorization": "Bearer "}).get("/metrics").status_code == 404, "no token is set"
    settings.METRICS_TOKEN = "secret"
    assert Client(headers={"Authorization": "Bearer secret"}).get("/metrics").status_code == 200
    assert Client(headers={"Authorization": "Bearer secre"}).get("/metrics").status_code == 404
    settings.METRICS_NETWORKS = ["10.0.0.0/8"]
    assert Client().get("/metrics", REMOTE_ADDR="10.1.2.3").status_code == 200
    assert Client().get("/metrics", REMOTE_ADDR="11.1.2.3").status_code == 404


def test_what_the_installation_does(looker, reported):
    with app.connection_for_write() as broker:
        broker.default_channel.queue_purge(ENGINE_QUEUE)  # in memory here, and other tests of this process used it
    beat()
    found = samples(sign_in(looker).get("/metrics"))
    pool = (("base_model", BUNDLED_ID),)
    assert found["marlaas_jobs", (("status", "running"),)] == 1
    assert found["marlaas_engine_up", ()] == 1
    assert found["marlaas_engine_jobs", (("status", "running"),)] == 2
    assert found["marlaas_pool_kv_granted_tokens", pool] == 250
    assert found["marlaas_pool_rollout_waiting", pool] == 2
    assert found["marlaas_pool_rollout_workers_serving", pool] == 1
    assert found["marlaas_engine_unacknowledged_events", ()] == 7
    assert found["marlaas_celery_queue_messages", (("queue", "engine"),)] == 0
    assert ("marlaas_events_worker_heartbeat_timestamp_seconds", ()) in found
    assert ("process_resident_memory_bytes", ()) in found


def test_before_the_engine_was_heard_of(looker):
    found = samples(sign_in(looker).get("/metrics"))
    assert found["marlaas_engine_up", ()] == 0
    assert ("marlaas_engine_draining", ()) not in found


def test_requests_are_timed_by_route(looker, browser, ours):
    def count():
        key = (("method", "GET"), ("route", "/jobs/<uuid:job_id>/"))
        return samples(sign_in(looker).get("/metrics")).get(("marlaas_http_request_duration_seconds_count", key), 0)

    before = count()
    assert browser.get(f"/jobs/{ours.job.pk}/").status_code == 200
    assert count() == before + 1
    browser.get("/jobs/no-such-page/")
    page = sign_in(looker).get("/metrics").content.decode()
    assert str(ours.job.pk) not in page and 'route="unknown",status="404"' in page


@pytest.mark.django_db(transaction=True)
async def test_open_sockets_are_counted():
    from asgiref.sync import sync_to_async

    from portal.engine_room.metrics import WEBSOCKETS

    before = WEBSOCKETS._value.get()
    socket = Socket("/ws/jobs/", None)
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output(timeout=10))["type"] == "websocket.accept"
    assert WEBSOCKETS._value.get() == before + 1
    await socket.receive_close()
    await sync_to_async(lambda: None)()
    assert WEBSOCKETS._value.get() == before
