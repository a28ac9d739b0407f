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
    assert error.keys() - {"limit"} == SHAPE
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


WRITES = {
    "jobs:write": ["/api/v1/jobs/", "/api/v1/jobs/{job}/cancel/", "/api/v1/jobs/{job}/pause/"],
    "datasets:write": ["/api/v1/datasets/"],
    "rewards:write": ["/api/v1/reward-functions/"],
    "adapters:read": ["/api/v1/adapters/{adapter}/link/"],
    "admin": ["/api/v1/invitations/", "/api/v1/api-tokens/", "/api/v1/exports/", "/api/v1/tenant/deletion/"],
}


@pytest.mark.parametrize("scope", ["read", *WRITES])
def test_a_token_does_what_its_scope_says_and_nothing_else(ours, scope):
    client = client_with(ours, scope)
    for needed, paths in WRITES.items():
        for path in paths:
            path = path.format(job=ours.job.pk, adapter=ours.adapter.pk)
            answer = client.post(path, {}, "application/json")
            if scope in {needed, "admin"}:
                assert answer.status_code != 403, path
            else:
                assert answer.status_code == 403, path
                assert f"'{needed}'" in error_of(answer)["message"]
    reads = client.get("/api/v1/jobs/").status_code
    assert reads == (403 if scope == "adapters:read" else 200)


SAMPLE_SCOPES = ("datasets:write", "rewards:write", "jobs:write")


def test_a_developers_token_starts_the_sample_project(ours):
    answer = client_with(ours, *SAMPLE_SCOPES).post("/api/v1/sample-project/")
    assert answer.status_code == 201
    for missing in SAMPLE_SCOPES:
        held = [scope for scope in SAMPLE_SCOPES if scope != missing]
        answer = client_with(ours, *held).post("/api/v1/sample-project/")
        assert answer.status_code == 403
        assert f"'{missing}'" in error_of(answer)["message"]


def test_every_writing_method_names_its_scope(ours):
    """A view that names none asks for 'admin', which its author should have decided."""
    from django.urls import get_resolver
    from rest_framework.permissions import SAFE_METHODS

    def views(resolver):
        for entry in resolver.url_patterns:
            yield from views(entry) if hasattr(entry, "url_patterns") else [entry.callback]

    classes = {view.cls for view in views(get_resolver()) if hasattr(view, "cls")}
    assert len(classes) > 20
    for cls in classes:
        methods = {name.upper() for name in cls.http_method_names if hasattr(cls, name)}
        if methods - set(SAFE_METHODS):
            assert hasattr(cls, "write_scope"), f"{cls.__name__} needs a write_scope"


def test_a_token_can_do_no_more_than_its_user(ours):
    client = client_with(ours, "jobs:write")
    Membership.objects.update(role=Role.VIEWER)
    answer = client.post(f"/api/v1/jobs/{ours.job.pk}/cancel/")
    assert (answer.status_code, error_of(answer)["code"]) == (403, "not_allowed")
    Membership.objects.all().delete()
    assert client.get("/api/v1/jobs/").status_code == 401


def test_the_schema_says_which_scope_an_operation_needs(ours):
    import yaml

    schema = yaml.safe_load(Client().get("/api/v1/schema/").content)
    found = {
        (path, method): operation["x-required-scope"]
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    }
    assert found["/api/v1/jobs/", "get"] == "read"
    assert found["/api/v1/jobs/", "post"] == "jobs:write"
    assert found["/api/v1/adapters/{adapter_id}/link/", "post"] == "adapters:read"
    assert found["/api/v1/audit/", "get"] == "admin"
    assert found["/api/v1/sample-project/", "post"] == "datasets:write rewards:write jobs:write"
    # Whatever a developer may do on pages, a developer's token may do too: 'admin' is for owners alone.
    for (path, method), scope in found.items():
        owners = ("tenant/", "members/", "invitations/", "api-tokens/", "exports/", "audit/")
        assert ("admin" in scope) <= path.removeprefix("/api/v1/").startswith(owners), (path, method)
    assert "`jobs:write`" in schema["paths"]["/api/v1/jobs/"]["post"]["description"]


@pytest.mark.parametrize("address", ["/api/v1/jobs/?token={}", "/api/v1/{}/", "/jobs/?q={}", "/?key=%6D{}"])
def test_a_token_in_an_address_is_refused(ours, address):
    _, secret = create_api_token(tenant=ours.tenant, user=ours.user, name="t")
    secret = secret.removeprefix("m") if "%6D" in address else secret
    answer = Client().get(address.format(secret))
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "token_in_address"


def test_requests_have_an_id(api):
    assert api.get("/api/v1/jobs/", headers={"X-Request-ID": "run-42.step_7"})["X-Request-ID"] == "run-42.step_7"
    for bad in ("short", "x" * 65, "two words", "new\u00e9line1234"):
        made = api.get("/api/v1/jobs/", headers={"X-Request-ID": bad})["X-Request-ID"]
        assert made != bad and len(made) == 32


def test_every_failure_has_the_shape(api, ours, monkeypatch):
    assert error_of(api.get("/api/v1/nothing/"))["code"] == "not_found"
    assert "end with a slash" in error_of(api.post("/api/v1/jobs"))["hint"]
    assert error_of(api.delete("/api/v1/jobs/"))["code"] == "method_not_allowed"
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


def test_schema_and_docs_are_open(db):
    assert Client().get("/api/v1/schema/").status_code == 200
    page = Client().get("/api/v1/docs/")
    assert page.status_code == 200
    assert b"<style" not in page.content and b"<script>" not in page.content
