"""The page of documents and tokens, and the same over the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from portal.environments.models import EnvironmentToken
from portal.environments.reasoning_gym import NAMES, suggest_task
from portal.sealing import get_sealer
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user
from tests.portal.factories import Owned

URL = "/environments/"
API = "/api/v1/environments/"


def send(browser: Client, kind: str, **fields: Any) -> Any:
    return browser.post(URL, {"kind": kind, **{f"{kind}-{name}": value for name, value in fields.items()}})


def test_documents_are_uploaded_or_pasted(browser: Client, ours: Owned) -> None:
    file = SimpleUploadedFile("notes.txt", b"One.\n\nTwo.")
    assert send(browser, "documents", name="file", file=file).status_code == 302
    assert send(browser, "documents", name="pasted", text='{"text": "x"}').status_code == 302
    assert {one.name: one.documents for one in ours.tenant.document_sets.all()} == {"manual": 1, "file": 2, "pasted": 1}
    page = browser.get(URL).content.decode()
    assert "file is stored: 2 document(s)." in page


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"name": "x"}, "Choose a file."), ({"name": "x", "text": '{"text": 1}'}, "Line 1: &#x27;text&#x27;")],
)
def test_what_is_wrong_with_documents_is_said_at_the_field(
    browser: Client, ours: Owned, fields: dict[str, str], error: str
) -> None:
    answer = send(browser, "documents", **fields)
    assert answer.status_code == 400
    assert 'id="id_documents-file_error"' in answer.content.decode()
    assert error in answer.content.decode()


def value_of(token: EnvironmentToken) -> str:
    kept = token.path.read_text()
    assert kept.startswith("sealed:")
    return get_sealer().open(kept)


def test_a_tokens_value_is_never_shown(browser: Client, ours: Owned) -> None:
    refused = send(browser, "token", name="Bad Name", value="s3cret")
    assert refused.status_code == 400 and "s3cret" not in refused.content.decode()
    send(browser, "token", name="game", value="s3cret")
    token = ours.tenant.environment_tokens.get(name="game")
    assert value_of(token) == "s3cret"
    assert "s3cret" not in browser.get(URL).content.decode()
    browser.post(reverse("environments:token-replace", args=[token.pk]), {"value": "n3w"})
    assert value_of(token) == "n3w"
    answer = browser.post(reverse("environments:token-replace", args=[token.pk]), {"value": "a b"}, follow=True)
    assert "no spaces" in answer.content.decode() and value_of(token) == "n3w"
    browser.post(reverse("environments:token-delete", args=[token.pk]))
    assert not token.path.exists()


def test_viewers_see_names_and_change_nothing(client: Client, ours: Owned) -> None:
    viewer = create_user(username="viewer", email="viewer@example.org", password="correct horse battery")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    client.force_login(viewer, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(URL).content.decode()
    assert "manual" in page and "Upload documents" not in page
    assert send(client, "token", name="x", value="y").status_code == 403
    assert client.post(reverse("environments:token-delete", args=[ours.environment_token.pk])).status_code == 403


def test_the_api_does_the_same(api: Client, ours: Owned) -> None:
    file = SimpleUploadedFile("d.jsonl", b'{"text": "a"}\n{"text": "b"}\n')
    made = api.post(f"{API}documents/", {"name": "by api", "file": file})
    assert (made.status_code, made.json()["documents"]) == (201, 2)
    listed = api.get(f"{API}documents/").json()
    assert [one["name"] for one in listed["results"]] == ["by api", "manual"]
    assert api.get(f"{API}documents/{made.json()['id']}/").json() == made.json()
    assert api.delete(f"{API}documents/{made.json()['id']}/").status_code == 204
    bad = api.post(f"{API}documents/", {"name": "x", "file": SimpleUploadedFile("d", b'{"a": 1}')}).json()["error"]
    assert (bad["code"], bad["fields"][0]["field"]) == ("documents_invalid", "file")

    token = api.post(f"{API}tokens/", {"name": "game", "value": "s3cret"}, "application/json")
    assert token.status_code == 201 and "s3cret" not in token.content.decode()
    path = f"{API}tokens/{token.json()['id']}/"
    assert api.put(path, {"value": "n3w"}, "application/json").status_code == 200
    assert value_of(ours.tenant.environment_tokens.get(name="game")) == "n3w"
    assert api.put(path, {"value": "a b"}, "application/json").json()["error"]["fields"][0]["field"] == "value"
    assert "n3w" not in api.get(path).content.decode()
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404


def test_the_names_of_tasks_are_the_packages() -> None:
    from reasoning_gym.factory import DATASETS

    assert sorted(DATASETS) == NAMES
    assert suggest_task("countdown") == ""
    assert "Did you mean countdown" in suggest_task("count_down")
