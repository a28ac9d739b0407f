"""One error shape, whatever fails and wherever."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.http import UnreadablePostError
from django.test import Client

from portal.api.throttling import ReadThrottle, WriteThrottle
from tests.portal.factories import Owned

JOBS = "/api/v1/jobs/"
SHAPE = {"code", "message", "fields", "hint"}


def error_of(answer: Any) -> dict[str, Any]:
    assert answer["Content-Type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() - {"limit"} == SHAPE
    assert error["message"] and error["hint"]
    return error


def test_addresses_that_are_none(api: Client) -> None:
    for path in ("/api/v1/nothing/", "/api/v2/jobs/", "/api/", "/api/v1/jobs"):
        answer = api.get(path)
        assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


def test_methods_that_are_none(api: Client) -> None:
    answer = api.delete(JOBS)
    assert (answer.status_code, error_of(answer)["code"]) == (405, "method_not_allowed")
    assert {"GET", "POST"} <= set(answer["Allow"].split(", "))


def test_bodies_of_another_type(api: Client) -> None:
    answer = api.post(JOBS, b"x", "text/plain")
    assert (answer.status_code, error_of(answer)["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("length", [2 * 1024 * 1024 + 1, 5_000_000])
def test_bodies_that_are_too_large(api: Client, length: int) -> None:
    answer = api.post(JOBS, b'"' + b"x" * (length - 2) + b'"', "application/json")
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (413, "too_large")
    assert "2097152" in error["message"]


def test_forms_with_too_many_fields(api: Client) -> None:
    answer = api.post("/api/v1/datasets/", {f"field{n}": "" for n in range(1001)})
    assert (answer.status_code, error_of(answer)["code"]) == (413, "too_large")


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 200_000, b'{"name": NaN}', b""])
def test_bodies_that_are_no_json(api: Client, body: bytes) -> None:
    answer = api.post(JOBS, body, "application/json")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in {"parse_error", "invalid"}


def test_what_accept_asks_for_changes_nothing(api: Client, ours: Owned) -> None:
    for accept in ("text/event-stream", "text/html", "nonsense"):
        answer = api.get(JOBS, headers={"Accept": accept})
        assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RuntimeError("a secret detail"), 500, "internal"),
        (PermissionDenied("Not you."), 403, "not_allowed"),
        (UnreadablePostError("gone"), 400, "bad_request"),
    ],
)
def test_what_fails_inside(
    api: Client, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr("portal.api.views.jobs.list_jobs", fail)
    answer = api.get(JOBS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "secret" not in answer.content.decode()


def test_what_fails_outside_of_the_views(api: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a secret detail")

    assert error_bad_host(api)["code"] == "bad_request"
    monkeypatch.setattr("portal.api.views.base.answer_plain", fail)
    api.raise_request_exception = False
    answer = api.get("/api/v1/nothing/")
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal")


def error_bad_host(api: Client) -> dict[str, Any]:
    answer = api.get(JOBS, headers={"Host": "elsewhere.example"})
    assert answer.status_code == 400
    return answer.json()["error"]


def test_pages_keep_their_own_errors(browser: Client) -> None:
    answer = browser.get("/no-such-page/")
    assert (answer.status_code, answer["Content-Type"].partition(";")[0]) == (404, "text/html")


def test_every_answer_tells_how_the_rate_limit_stands(
    api: Client, ours: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    for throttle in (ReadThrottle, WriteThrottle):
        monkeypatch.setattr(throttle, "THROTTLE_RATES", {"write": "9/min", "read": "2/min"})
    left = []
    for status in (200, 200, 429):
        answer = api.get(JOBS)
        assert answer.status_code == status
        assert answer["X-RateLimit-Limit"] == "2"
        assert 1 <= int(answer["X-RateLimit-Reset"]) <= 60
        left.append(answer["X-RateLimit-Remaining"])
    assert left == ["1", "0", "0"]
    assert 1 <= int(answer["Retry-After"]) <= 60
    error = error_of(answer)
    assert "2 reading requests per minute" in error["message"]
    assert (error["limit"]["kind"], error["limit"]["limit"]) == ("api_read_requests", 2)
    assert error["limit"]["retry_after"] == int(answer["Retry-After"])
    assert api.post(f"{JOBS}{ours.job.pk}/cancel/")["X-RateLimit-Limit"] == "9"
