"""A request sent twice with one key is carried out once."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from portal.api.idempotency import KEPT
from portal.api.models import IdempotencyKey
from portal.datasets.models import DatasetVersion
from portal.rewards.models import RewardVersion
from portal.tenants.models import ApiToken, Role, Scope
from portal.tenants.services import add_member, create_api_token, create_user
from tests.portal.factories import Owned

REWARDS = "/api/v1/reward-functions/"
DATASETS = "/api/v1/datasets/"
BODY = {"name": "another", "spec": {"grader": {"type": "numeric"}}}
ROWS = b'{"prompt": "1+1?", "answer": 2}\n{"prompt": "2+2?", "answer": 4}\n'


def post(api: Client, body: Any, key: str = "k-1", path: str = REWARDS) -> Any:
    return api.post(path, json.dumps(body), "application/json", headers={"Idempotency-Key": key})


def test_the_same_request_gets_the_same_answer(api: Client, ours: Owned) -> None:
    first, second = post(api, BODY), post(api, BODY)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert second["Idempotent-Replayed"] == "true" and "Idempotent-Replayed" not in first
    assert RewardVersion.objects.filter(reward_function__name="another").count() == 1
    assert post(api, BODY, "k-2").json()["number"] == 2


@pytest.mark.parametrize("path", ["jobs/{job_id}/cancel/", "reward-trials/{trial_id}/cancel/", "members/leave/"])
def test_actions_take_keys_too(api: Client, ours: Owned, path: str) -> None:
    address = f"/api/v1/{path.format(**ours.ids)}"
    first, second = (api.post(address, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.status_code, first.json()) == (second.status_code, second.json())
    assert second["Idempotent-Replayed"] == "true"


def test_a_refusal_is_repeated_too(api: Client, ours: Owned) -> None:
    faulty = {**BODY, "spec": {}}
    assert post(api, faulty).json() == post(api, faulty).json()
    assert post(api, BODY).status_code == 409


@pytest.mark.parametrize("other", [{**BODY, "name": "x"}, {**BODY, "spec": {"grader": {"type": "exact"}}}, []])
def test_another_body_is_a_conflict(api: Client, ours: Owned, other: Any) -> None:
    assert post(api, BODY).status_code == 201
    answer = post(api, other)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "new key" in answer.json()["error"]["hint"]


def test_another_address_or_member_is_a_conflict(api: Client, ours: Owned) -> None:
    assert post(api, BODY).status_code == 201
    assert post(api, BODY, path=f"{REWARDS}?x=1").status_code == 409
    colleague = create_user(username="colleague", email="c@example.org", password="correct horse battery")
    add_member(tenant=ours.tenant, user=colleague, role=Role.DEVELOPER)
    _, secret = create_api_token(tenant=ours.tenant, user=colleague, name="t", scopes=[Scope.REWARDS_WRITE])
    assert post(Client(headers={"Authorization": f"Bearer {secret}"}), BODY).status_code == 409


def test_tenants_have_keys_of_their_own(api: Client, ours: Owned, theirs: Owned) -> None:
    assert post(api, BODY).status_code == 201
    _, secret = create_api_token(tenant=theirs.tenant, user=theirs.user, name="t", scopes=[Scope.REWARDS_WRITE])
    answer = post(Client(headers={"Authorization": f"Bearer {secret}"}), BODY)
    assert answer.status_code == 201 and "Idempotent-Replayed" not in answer


def test_a_request_in_hand_is_not_carried_out_twice(api: Client, ours: Owned) -> None:
    post(api, BODY)
    IdempotencyKey.objects.update(status=None, body=None)  # as while it is answered, or after a crash
    answer = post(api, BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "is being answered" in answer.json()["error"]["message"]


def test_a_failure_on_our_side_frees_the_key(api: Client, ours: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**kwargs: Any) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr("portal.api.views.rewards.create_reward_version", fail)
        assert post(api, BODY).status_code == 500
    assert post(api, BODY).status_code == 201


def test_keys_are_forgotten_after_a_day(api: Client, ours: Owned) -> None:
    post(api, BODY)
    IdempotencyKey.objects.update(created_at=timezone.now() - KEPT - timedelta(seconds=1))
    assert post(api, BODY).json()["number"] == 2
    assert IdempotencyKey.objects.count() == 1


def test_secrets_are_not_stored(api: Client, ours: Owned) -> None:
    body = {"name": "made by a script", "scopes": ["read"]}
    made = post(api, body, path="/api/v1/api-tokens/")
    assert made.status_code == 201
    again = post(api, body, path="/api/v1/api-tokens/")
    assert again.status_code == 409 and "carried out" in again.json()["error"]["message"]
    assert ApiToken.objects.filter(name="made by a script").count() == 1
    stored = str(list(IdempotencyKey.objects.values()))
    assert made.json()["secret"] not in stored


@pytest.mark.parametrize("key", ["x" * 201, "a\u0001b"])
def test_keys_that_are_none(api: Client, ours: Owned, key: str) -> None:
    answer = post(api, BODY, key)
    assert answer.status_code == 400
    assert answer.json()["error"]["fields"][0]["field"] == "Idempotency-Key"


def upload(api: Client, rows: bytes, name: str = "big") -> Any:
    return api.post(f"{DATASETS}?name={name}", rows, "application/jsonl", headers={"Idempotency-Key": "upload-1"})


def test_uploads_as_a_body(api: Client, ours: Owned) -> None:
    first, second = upload(api, ROWS), upload(api, ROWS)
    assert (first.status_code, first.json()["rows"]) == (201, 2)
    assert second.json() == first.json()
    assert upload(api, ROWS.replace(b"4", b"5")).status_code == 409
    assert DatasetVersion.objects.filter(dataset__name="big").count() == 1


def test_uploads_as_a_form(api: Client, ours: Owned) -> None:
    def send(rows: bytes) -> Any:
        file = SimpleUploadedFile("rows.jsonl", rows)
        return api.post(DATASETS, {"name": "form", "file": file}, headers={"Idempotency-Key": "upload-2"})

    first, second = send(ROWS), send(ROWS)
    assert (first.status_code, first.json()["rows"]) == (201, 2)
    assert second.json() == first.json()
    assert send(ROWS + ROWS).status_code == 409
