"""Documents and tokens lie where the engine looks, and only as long as nobody needs them."""

from __future__ import annotations

import hashlib
import io
import stat
from typing import Any

import pytest
from django.conf import settings
from django.http import Http404

from engine.data import DatasetError
from engine.environments.files import TenantFiles
from portal.environments import services
from portal.environments.models import DocumentSet, EnvironmentToken
from portal.environments.services import (
    create_document_set,
    create_environment_token,
    delete_document_set,
    delete_environment_token,
    replace_environment_token,
)
from portal.errors import Conflict, InvalidInput, NotAllowed, QuotaExceeded
from portal.jobs.services import create_job, ingest_events
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user
from tests.portal.factories import Owned, jsonl, make_batch, status


def engine_files(owned: Owned) -> TenantFiles:
    return TenantFiles(settings.MARLAAS_VAR / "tenants", owned.tenant.pk.hex)


def upload(owned: Owned, content: bytes = b"First.\n\nSecond.", name: str = "notes") -> DocumentSet:
    return create_document_set(tenant=owned.tenant, user=owned.user, name=name, file=io.BytesIO(content))


def job_with(owned: Owned, **environment):
    return create_job(
        tenant=owned.tenant,
        user=owned.user,
        name="with environment",
        base_model_id=owned.job.base_model_id,
        dataset_version=owned.dataset_version,
        reward_version=owned.reward_version,
        settings={"environment": environment},
    )


def test_the_engine_reads_what_was_uploaded(ours: Owned) -> None:
    made = upload(ours)
    assert [one.text for one in engine_files(ours).documents(made.sha256)] == ["First.", "Second."]
    assert (made.documents, made.size_bytes) == (2, made.path.stat().st_size)
    assert hashlib.sha256(made.path.read_bytes()).hexdigest() == made.sha256
    assert list(made.path.parent.glob(".*")) == []


@pytest.mark.parametrize(
    ("content", "name", "field", "says"),
    [
        (b"", "x", "file", "holds no document"),
        (b'{"text": 5}', "x", "file", "Line 1"),
        (b"a", " ", "name", "Give the documents a name"),
        (b"a", "manual", "name", "of this name"),
    ],
)
def test_faulty_uploads_leave_nothing(ours: Owned, content: bytes, name: str, field: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        upload(ours, content, name)
    assert (caught.value.fields[0].field, says in caught.value.fields[0].message) == (field, True)
    assert ours.tenant.document_sets.get() == ours.document_set
    assert list(ours.document_set.path.parent.iterdir()) == [ours.document_set.path]


def test_uploads_have_limits(ours: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(ours)
    with pytest.raises(Conflict, match="as notes"):
        upload(ours, name="again")
    ours.tenant.max_dataset_bytes = 10
    with pytest.raises(InvalidInput) as caught:
        upload(ours, b"x" * 11, "large")
    assert "larger than 10 bytes" in caught.value.fields[0].message
    monkeypatch.setattr(services, "MAX_DOCUMENT_SETS", 2)
    with pytest.raises(QuotaExceeded):
        upload(ours, b"other", "third")


def test_documents_are_kept_while_a_job_needs_them(ours: Owned, django_capture_on_commit_callbacks) -> None:
    documents = ours.document_set
    job = job_with(ours, type="tools", tools=["search"], documents_sha256=documents.sha256)
    arguments = {"tenant": ours.tenant, "user": ours.user, "document_set_id": documents.pk}
    with pytest.raises(Conflict, match="with environment uses these documents"):
        delete_document_set(**arguments)
    ingest_events(batch=make_batch(job, status("succeeded", "Done.")))
    with django_capture_on_commit_callbacks(execute=True):
        delete_document_set(**arguments)
    assert not documents.path.exists() and not ours.tenant.document_sets.exists()
    with pytest.raises(InvalidInput) as caught:
        job_with(ours, type="tools", tools=["search"], documents_sha256=documents.sha256)
    assert caught.value.fields[0].field == "environment.documents_sha256"


def test_tokens_are_files_only_their_owner_may_read(
    ours: Owned, theirs: Owned, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = ours.environment_token
    assert token.path.read_text().startswith("sealed:") and "secret-of-ours" not in token.path.read_text()
    monkeypatch.setenv("SECRET_KEY", "another one of thirty-two characters")
    with pytest.raises(DatasetError, match="MARLAAS_FIELD_KEYS or SECRET_KEY"):
        engine_files(ours).token("server")
    monkeypatch.setenv("SECRET_KEY", settings.SECRET_KEY)
    assert engine_files(ours).token("server") == "secret-of-ours"
    assert engine_files(theirs).token("server") == "secret-of-theirs"
    assert stat.S_IMODE(token.path.stat().st_mode) == 0o600
    before = token.changed_at
    replace_environment_token(tenant=ours.tenant, user=ours.user, environment_token_id=token.pk, value="new")
    token.refresh_from_db()
    assert engine_files(ours).token("server") == "new" and token.changed_at > before
    assert stat.S_IMODE(token.path.stat().st_mode) == 0o600
    assert "new" not in str(EnvironmentToken.objects.filter(pk=token.pk).values())


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("a", "", "value"),
        ("a", "two words", "value"),
        ("a", "ümlaut", "value"),
        ("a", "x" * 4097, "value"),
        ("a", "line\n", "value"),
        ("../a", "x", "name"),
        ("A", "x", "name"),
        ("a\n", "", "value"),
        ("server", "x", "name"),
    ],
)
def test_faulty_tokens_are_refused(ours: Owned, name: str, value: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        create_environment_token(tenant=ours.tenant, user=ours.user, name=name, value=value)
    assert [error.field for error in caught.value.fields] == [field]
    assert len(list(ours.environment_token.path.parent.iterdir())) == 1


def test_tokens_are_kept_while_a_job_needs_them(ours: Owned) -> None:
    job = job_with(ours, type="remote", url="https://example.org/game", token_name="server")
    arguments = {"tenant": ours.tenant, "user": ours.user, "environment_token_id": ours.environment_token.pk}
    with pytest.raises(Conflict, match="uses this token"):
        delete_environment_token(**arguments)
    ingest_events(batch=make_batch(job, status("failed", "No.")))
    delete_environment_token(**arguments)
    assert not ours.environment_token.path.exists()
    with pytest.raises(InvalidInput) as caught:
        job_with(ours, type="remote", url="https://example.org/game", token_name="server")
    assert caught.value.fields[0].field == "environment.token_name"


def test_another_tenants_documents_and_tokens_cannot_be_used(ours: Owned, theirs: Owned) -> None:
    made = upload(theirs, b"theirs alone")
    with pytest.raises(InvalidInput):
        job_with(ours, type="tools", documents_sha256=made.sha256)
    with pytest.raises(Http404):
        delete_document_set(tenant=ours.tenant, user=ours.user, document_set_id=made.pk)
    create_environment_token(tenant=theirs.tenant, user=theirs.user, name="only-theirs", value="x")
    with pytest.raises(InvalidInput):
        job_with(ours, type="remote", url="https://example.org", token_name="only-theirs")


def test_viewers_may_not(ours: Owned) -> None:
    viewer = create_user(username="viewer", email="v@example.org", password="correct horse battery")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    with pytest.raises(NotAllowed):
        create_document_set(tenant=ours.tenant, user=viewer, name="x", file=jsonl({"text": "a"}))
    with pytest.raises(NotAllowed):
        create_environment_token(tenant=ours.tenant, user=viewer, name="x", value="y")
