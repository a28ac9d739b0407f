"""Two tenants, side by side, on a database and folders of the test's own; neither Redis nor engine is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from portal.tenants.models import Scope
from portal.tenants.services import create_api_token
from tests.portal.factories import Owned, build_owned


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A database for each process of the run. SQLite on a file, as in use: in memory, threads would share one
    connection's locks."""
    database = connections["default"].settings_dict
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database["TEST"]["NAME"] = str(tmp_path_factory.mktemp("database") / "test.sqlite3")


@pytest.fixture(autouse=True)
def portal_settings(settings: Any, tmp_path: Path) -> Any:
    """Folders of the test's own, no Redis, static files without a manifest, passwords hashed fast."""
    settings.MARLAAS_VAR = tmp_path / "var"
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "var" / "tmp"
    settings.FILE_UPLOAD_TEMP_DIR.mkdir(parents=True)
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": str(tmp_path)}
    }
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
    settings.API_STREAM_SECONDS = 0  # a stream then ends once it has sent what there is
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    return settings


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Commands handed to the broker, as (name, argument, ...); the broker itself is faked."""
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr("portal.jobs.outbox.app.send_task", lambda name, args, queue, retry: sent.append((name, *args)))
    return sent


@pytest.fixture(autouse=True)
def wakes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often the deliveries worker was woken; the broker itself is faked."""
    woken: list[str] = []
    for module in ("services", "occurrences", "mails"):
        monkeypatch.setattr(f"portal.webhooks.{module}.wake_deliveries", lambda: woken.append("deliver"))
    return woken


@pytest.fixture
def ours(db: None) -> Owned:
    """The tenant a test acts as, with one of everything."""
    return build_owned("ours")


@pytest.fixture
def theirs(db: None) -> Owned:
    """Another tenant, with one of everything."""
    return build_owned("theirs")


@pytest.fixture
def browser(client: Client, ours: Owned) -> Client:
    """Signed in as ``ours.user``."""
    client.force_login(ours.user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def api(ours: Owned) -> Client:
    """Carries a token of ``ours`` with every scope."""
    _, secret = create_api_token(tenant=ours.tenant, user=ours.user, name="all", scopes=list(Scope))
    return Client(headers={"Authorization": f"Bearer {secret}"})
