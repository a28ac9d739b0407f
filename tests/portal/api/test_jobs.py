"""Jobs and adapters over the API."""

import pytest
import yaml
from django.test import Client

from engine.spec import SUBMIT_JOB
from portal.api.throttling import WriteThrottle
from portal.base_models.services import BUNDLED_ID
from portal.jobs.models import Job
from portal.jobs.services import ingest_events
from tests.portal.factories import control, make_batch, rollout, span, status

URL = "/api/v1/jobs/"


def patch(client, owned, data):
    return client.patch(f"{URL}{owned.job.pk}/", data, "application/json")


@pytest.fixture
def body(ours):
    return {
        "name": "by api",
        "base_model": BUNDLED_ID,
        "dataset_version": str(ours.dataset_version.pk),
        "reward_version": str(ours.reward_version.pk),
        "settings": {"training": {"steps": 3}},
    }


def post(client, data, path=URL, **headers):
    return client.post(path, data, "application/json", headers=headers)


def test_start(api, ours, body, commands, django_capture_on_commit_callbacks):
    commands.clear()
    with django_capture_on_commit_callbacks(execute=True):
        answer = post(api, body)
    assert answer.status_code == 201
    job = Job.objects.get(pk=answer.json()["id"])
    assert (job.tenant, job.created_by, job.steps) == (ours.tenant, ours.user, 3)
    assert [name for name, *_ in commands] == [SUBMIT_JOB]
    shown = api.get(f"{URL}{job.pk}/").json()
    assert shown == answer.json()
    assert (shown["status"], shown["spec"]["training"]["steps"]) == ("queued", 3)
    assert shown["reason"]


def test_the_idempotency_key(api, ours, body):
    first, again = post(api, body, **{"Idempotency-Key": "k"}), post(api, body, **{"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    other = post(api, {**body, "name": "other"}, **{"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    long = post(api, body, **{"Idempotency-Key": "k" * 201})
    assert long.json()["error"]["fields"][0]["field"] == "Idempotency-Key"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"base_model": "gpt-9"}, "base_model"),
        ({"dataset_version": "7"}, "dataset_version"),
        ({"settings": []}, "settings"),
        ({"settings": {"lora": {"rank": 17}}}, "lora.rank"),
        ({"settings": {"training": {"steps": "many"}}}, "training.steps"),
    ],
)
def test_faults_name_the_field(api, ours, body, change, field):
    answer = post(api, {**body, **change})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error.keys() == {"code", "message", "fields", "hint"}
    assert [item["field"] for item in error["fields"]] == [field]
    assert error["fields"][0]["message"]


def test_the_quota(api, ours, body):
    ours.tenant.max_active_jobs = 1
    ours.tenant.save()
    answer = post(api, body)
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["code"] == "quota_exceeded"
    assert "limit is 1" in error["message"] and error["hint"]


@pytest.mark.parametrize(("action", "transition"), [("pause", "pausing"), ("cancel", "cancelling"), ("resume", "")])
def test_actions(api, ours, action, transition):
    for _ in range(2):
        answer = api.post(f"{URL}{ours.job.pk}/{action}/")
        assert (answer.status_code, answer.json()["transition"]) == (202, transition)
        assert answer.json()["control"]["revision"] == (1 if transition else 0)


def test_changing_priority_and_steps(api, ours):
    answer = patch(api, ours, {"priority": 4})
    assert (answer.status_code, answer.json()["control"]["priority"]) == (202, 4)
    assert answer.json()["priority"] == 0  # until the engine goes by it
    shown = patch(api, ours, {"priority": 5, "steps": 40}).json()
    assert shown["control"] == {
        "revision": 3,
        "applied_revision": 0,
        "paused": False,
        "cancelled": False,
        "priority": 5,
        "steps": 40,
    }
    ingest_events(batch=make_batch(ours.job, control(3, priority=5, steps=40), first=4))
    shown = api.get(f"{URL}{ours.job.pk}/").json()
    assert (shown["priority"], shown["steps"], shown["control"]["applied_revision"]) == (5, 40, 3)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"priority": 5, "steps": 0}, ["steps"]),
        ({"priority": 50, "steps": 40}, ["priority"]),
        ({"priority": "high"}, ["priority"]),
        ({"priority": None}, ["priority"]),
        ({"steps": 2**70}, ["steps"]),
        ({"prioritty": 3}, []),
        ({}, []),
    ],
)
def test_a_faulty_change_changes_nothing(api, ours, change, fields):
    answer = patch(api, ours, change)
    assert answer.status_code == 400
    assert [item["field"] for item in answer.json()["error"]["fields"]] == fields
    ours.job.refresh_from_db()
    assert (ours.job.control_revision, ours.job.wanted_priority) == (0, 0)


def test_changing_what_has_ended(api, ours):
    ingest_events(batch=make_batch(ours.job, status("succeeded", "Done."), first=4))
    for answer in (patch(api, ours, {"priority": 1}), api.post(f"{URL}{ours.job.pk}/pause/")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


def test_resuming_needs_room(api, ours, body):
    api.post(f"{URL}{ours.job.pk}/pause/")
    ingest_events(batch=make_batch(ours.job, control(1), status("paused", "Paused on request."), first=4))
    ours.tenant.max_active_jobs = 1
    ours.tenant.save()
    assert post(api, body).status_code == 201
    answer = api.post(f"{URL}{ours.job.pk}/resume/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "quota_exceeded")


def test_continuing_from_an_adapter(api, ours, body):
    answer = post(api, {**body, "start_from": str(ours.adapter.pk)})
    assert answer.status_code == 201
    shown = answer.json()
    assert shown["start_from"] == str(ours.adapter.pk)
    assert shown["spec"]["start_from"] == {"job_id": ours.job.pk.hex, "version": 1}
    faulty = post(api, {**body, "start_from": str(ours.adapter.pk), "settings": {"lora": {"rank": 8}}})
    assert [item["field"] for item in faulty.json()["error"]["fields"]] == ["lora.rank"]
    assert post(api, {**body, "start_from": "v1"}).json()["error"]["fields"][0]["field"] == "start_from"
    assert post(api, {**body, "start_from": None}).json()["start_from"] is None


def test_the_schema_describes_control(api, ours):
    paths = yaml.safe_load(api.get("/api/v1/schema/").content)["paths"]
    assert "patch" in paths["/api/v1/jobs/{job_id}/"]
    for action in ("pause", "resume", "cancel"):
        assert "202" in paths[f"/api/v1/jobs/{{job_id}}/{action}/"]["post"]["responses"]


def test_events(api, ours):
    ingest_events(batch=make_batch(ours.job, rollout(2), span(), status("succeeded", "Done."), first=4))
    url = f"{URL}{ours.job.pk}/events/"
    first = api.get(url, {"limit": 4}).json()
    assert [event["seq"] for event in first["events"]] == [1, 2, 3, 4]
    assert (first["last_seq"], first["finished"]) == (4, False)
    rest = api.get(url, {"after": 4}).json()
    assert [(event["seq"], event["type"]) for event in rest["events"]] == [(5, "span"), (6, "status")]
    assert (rest["last_seq"], rest["finished"]) == (6, True)
    assert rest["events"][1]["payload"]["reason"] == "Done."
    some = api.get(url, {"type": "rollout, span"}).json()
    assert [event["seq"] for event in some["events"]] == [4, 5]
    assert (some["last_seq"], some["finished"]) == (6, True)


@pytest.mark.parametrize("query", [{"after": "-1"}, {"after": "x"}, {"limit": "0"}, {"limit": "1001"}])
def test_faulty_cursors(api, ours, query):
    answer = api.get(f"{URL}{ours.job.pk}/events/", query)
    assert answer.status_code == 400
    assert answer.json()["error"]["fields"][0]["field"] == next(iter(query))


def test_adapters_and_their_links(api, ours):
    (adapter,) = api.get(f"{URL}{ours.job.pk}/adapters/").json()["results"]
    assert adapter["name"] == f"job-{ours.job.pk.hex}@v1"
    assert "path" not in adapter
    answer = api.post(f"/api/v1/adapters/{adapter['id']}/link/")
    assert answer.status_code == 200
    download = Client().get(answer.json()["url"])
    assert (download.status_code, download["Content-Type"]) == (200, "application/zip")


def test_a_rate_limit_says_which_and_when(api, ours, monkeypatch):
    monkeypatch.setattr(WriteThrottle, "THROTTLE_RATES", {"write": "2/min", "read": "9/min"})
    url = f"{URL}{ours.job.pk}/cancel/"
    assert [api.post(url).status_code for _ in range(3)] == [202, 202, 429]
    answer = api.post(url)
    error = answer.json()["error"]
    assert error["code"] == "rate_limited"
    assert "2 writing requests per min" in error["message"]
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert answer["Retry-After"] in error["hint"]
    assert api.get(f"{URL}{ours.job.pk}/").status_code == 200


def test_a_job_is_read_and_controlled_while_redis_is_down(api, ours, settings):
    # Nothing listens on the discard port.
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:9/0"}
    }
    assert api.get(f"{URL}{ours.job.pk}/").status_code == 200
    assert api.post(f"{URL}{ours.job.pk}/cancel/").status_code == 202
