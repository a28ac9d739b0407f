"""Tokens, scopes and the one error shape."""

import pytest
from django.test import Client

from portal.tenants.models import Membership, Role
from portal.tenants.services import create_api_token
from tests.portal.isolation import routes_with_ids

SHAPE = {"code", "message", "fields", "hint"}


def client_with(ours, *scopes):
    _, secret = create_api_token(tenant=ours.tenant, user=ours.user, name="t", scopes=scopes)
    return Client(headers={"Authorization": f"Bearer {secret}"})


def error_of(answer):
    error = answer.json()["error"]
    assert error.keys() == SHAPE
    assert error["message"]
    return error


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer mrl_wrong", "Bearer a b", "Basic b3Vyczp4", "mrl_x", "Bearer \xff\xfe"],
)
def test_without_a_valid_token(ours, header):
    client = Client(headers={"Authorization": header} if header is not None else None)
    answer = client.get("/api/v1/jobs/")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"].startswith("Bearer")
    assert error_of(answer)["hint"]


def test_a_browser_session_is_no_token(browser):
    assert browser.get("/api/v1/jobs/").status_code == 401


@pytest.mark.parametrize("path", [route.pattern for route in routes_with_ids(under="api/")])
def test_every_route_needs_a_token(ours, path):
    route = next(route for route in routes_with_ids(under="api/") if route.pattern == path)
    assert {Client().get(route.path(ours.ids)).status_code, Client().post(route.path(ours.ids)).status_code} == {401}


def test_a_reading_token_reads(ours):
    client = client_with(ours, "read")
    assert client.get("/api/v1/jobs/").status_code == 200
    assert client.post(f"/api/v1/adapters/{ours.adapter.pk}/link/").status_code == 200
    for path in (
        f"/api/v1/jobs/{ours.job.pk}/cancel/",
        "/api/v1/jobs/",
        "/api/v1/datasets/",
        "/api/v1/reward-functions/",
    ):
        answer = client.post(path, {}, "application/json")
        assert answer.status_code == 403
        assert "needs 'write'" in error_of(answer)["message"]
    ours.job.refresh_from_db()
    assert ours.job.control_revision == 0


def test_a_writing_token_reads_too(ours):
    client = client_with(ours, "write")
    assert client.get("/api/v1/jobs/").status_code == 200
    assert client.post(f"/api/v1/jobs/{ours.job.pk}/cancel/").status_code == 202


def test_a_token_can_do_no_more_than_its_user(ours):
    client = client_with(ours, "write")
    Membership.objects.update(role=Role.VIEWER)
    answer = client.post(f"/api/v1/jobs/{ours.job.pk}/cancel/")
    assert (answer.status_code, error_of(answer)["code"]) == (403, "not_allowed")
    Membership.objects.all().delete()
    assert client.get("/api/v1/jobs/").status_code == 401


def test_every_failure_has_the_shape(api, ours, monkeypatch):
    assert error_of(api.get("/api/v1/nothing/"))["code"] == "not_found"
    assert "end with a slash" in error_of(api.post("/api/v1/jobs"))["hint"]
    assert error_of(api.delete("/api/v1/jobs/"))["code"] == "method_not_allowed"
    assert error_of(api.get("/api/v1/jobs/?page=99"))["code"] == "not_found"
    assert error_of(api.get("/api/v1/jobs/not-an-id/"))["code"] == "not_found"
    assert error_of(api.post("/api/v1/jobs/", b"{", "application/json"))["code"] == "parse_error"
    assert error_of(api.post("/api/v1/jobs/", b"[1]", "application/json"))["code"] == "invalid"
    assert error_of(api.post("/api/v1/jobs/", b"x", "text/plain"))["code"] == "unsupported_media_type"

    def fail(*args, **kwargs):
        raise RuntimeError("a secret detail")

    monkeypatch.setattr("portal.api.views.jobs.list_jobs", fail)
    answer = api.get("/api/v1/jobs/")
    assert answer.status_code == 500
    assert error_of(answer)["code"] == "internal"
    assert "secret" not in answer.content.decode()


def test_pages(api, ours):
    answer = api.get("/api/v1/jobs/?page_size=1").json()
    assert (answer["count"], answer["next"], len(answer["results"])) == (1, None, 1)


def test_schema_and_docs_are_open(db):
    assert Client().get("/api/v1/schema/").status_code == 200
    page = Client().get("/api/v1/docs/")
    assert page.status_code == 200
    assert b"<style" not in page.content and b"<script>" not in page.content
