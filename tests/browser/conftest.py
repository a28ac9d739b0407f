"""A real browser against a real web server process, database file and Redis-protocol server.

Playwright's synchronous interface keeps an event loop in the main thread for as long as it runs. So Django's guard
against queries beside a loop is off here, what itself needs a loop (ingestion wakes sockets) runs in a thread
(``aside``), and Chromium lives for this package only: asynchronous tests elsewhere could not start a loop.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connections
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from portal.base_models.services import ensure_bundled_base_model
from portal.ops.installation import accepts, answers, free_port, redis_server
from tests.portal.factories import Owned, build_owned

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PASSWORD = "correct horse battery"
expect.set_options(timeout=30_000)  # nothing is measured here, and the machine may be busy
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come up within five minutes"
        time.sleep(0.05)


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, one process for the package."""
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def redis_url() -> Iterator[str]:
    """A Redis-protocol server on a unix socket (whose path has to be short)."""
    with tempfile.TemporaryDirectory(prefix="marlaas-") as folder:
        path = f"{folder}/redis.sock"
        options = ["--port", "0", "--unixsocket", path, "--unixsocketperm", "700", "--dir", folder, "--save", ""]
        with subprocess.Popen([redis_server(), *options], stdout=subprocess.DEVNULL) as process:
            wait_until(lambda: accepts(path), "The Redis-protocol server")
            yield f"unix://{path}?db=0"
            process.terminate()


class Server:
    """The portal's web server as its own process, on the tests' database."""

    def __init__(self, var: Path, redis_url: str) -> None:
        self.var = var
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "MARLAAS_VAR": str(var),
            "SECRET_KEY": django_settings.SECRET_KEY,  # what one of the two seals the other opens
            "DATABASE_URL": database_url(),
            "REDIS_URL": redis_url,
            "LOG_LEVEL": "WARNING",
        }
        self.environment.pop("DJANGO_ALLOW_ASYNC_UNSAFE", None)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "portal.asgi:application", "--log-level", "warning"]
        self.process = subprocess.Popen([*command, "--port", str(self.port)], env=self.environment)
        wait_until(lambda: answers(f"{self.url}/healthz"), "The web server")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()  # as in a crash: no socket is closed with a reason
            self.process.wait()
            self.process = None

    @contextmanager
    def set_to(self, **environment: str) -> Iterator[None]:
        """Started anew with other settings, and as before afterwards. Who is signed in stays so."""
        before = self.environment
        try:
            self.stop()
            self.environment = {**before, **environment}
            self.start()
            yield
        finally:
            self.stop()
            self.environment = before
            self.start()


def database_url() -> str:
    """Address of the test database, which pytest-django has made."""
    database = connections["default"].settings_dict
    if database["ENGINE"].endswith("sqlite3"):
        return f"sqlite:///{database['NAME']}"
    if database["HOST"].startswith("/"):  # a unix socket's folder
        return f"postgres://{database['USER']}@/{database['HOST']}/{database['NAME']}"
    address = f"{database['USER']}:{database['PASSWORD']}@{database['HOST']}:{database['PORT']}"
    return f"postgres://{address}/{database['NAME']}"


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SQLite on a file, which the web server can open too."""
    database = connections["default"].settings_dict
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database["TEST"]["NAME"] = str(tmp_path_factory.mktemp("database") / "test.sqlite3")


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None, redis_url: str) -> Iterator[Server]:
    """The portal as a visitor meets it: static files collected, strict headers, no debug mode."""
    var = tmp_path_factory.mktemp("var")
    server = Server(var, redis_url)
    collect = [sys.executable, "-m", "django", "collectstatic", "--noinput", "-v", "0"]
    subprocess.run(collect, env={**server.environment, "DJANGO_SETTINGS_MODULE": "portal.settings"}, check=True)
    server.start()
    yield server
    server.stop()


# --- data ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def portal(transactional_db: None, server: Server, settings: Any, redis_url: str) -> Server:
    """The web server, with this process writing where it reads: same database, keys, folders and channel layer."""
    settings.MARLAAS_VAR = server.var
    settings.FILE_UPLOAD_TEMP_DIR = server.var / "tmp"
    layer = {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [{"address": redis_url}]}}
    settings.CHANNEL_LAYERS = {"default": layer}
    ensure_bundled_base_model()
    return server


@pytest.fixture
def aside() -> Iterator[Callable[..., Any]]:
    """``aside(function, *args)`` runs a function of the portal in a thread, away from playwright's loop."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *args, **kwargs: pool.submit(function, *args, **kwargs).result()
        pool.submit(connections.close_all).result()


@pytest.fixture
def ours(portal: Server, aside: Callable[..., Any]) -> Owned:
    """A tenant with one of everything; its user signs in as ``ours`` with ``PASSWORD``."""
    return aside(build_owned, "ours")


# --- the browser -----------------------------------------------------------------------------------------------------


class Complaints(list[str]):
    """What the browser's console says against a page: errors, exceptions, refusals of the security policy."""

    def watch(self, context: BrowserContext) -> None:
        context.on("console", lambda message: self._note(message.type, message.text))
        context.on("weberror", lambda error: self.append(str(error.error)))

    def _note(self, kind: str, text: str) -> None:
        # Answers of 400 and 404, and what cannot be reached while the server is down, are no fault of the page.
        expected = any(
            words in text
            for words in ("Failed to load resource", "WebSocket connection", "Failed to fetch", "htmx:error: timeout")
        )
        if kind in {"error", "warning"} and not expected:
            self.append(text)


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """No test passes with any."""
    found = Complaints()
    yield found
    assert found == []


@pytest.fixture
def page(chromium: Browser, portal: Server, complaints: Complaints) -> Iterator[Page]:
    """A fresh visitor on a wide screen."""
    context = chromium.new_context(base_url=portal.url, viewport=WIDE, accept_downloads=True, reduced_motion="reduce")  # type: ignore[arg-type]
    complaints.watch(context)
    yield context.new_page()
    context.close()


def sign_in(page: Page, user: str, password: str = PASSWORD) -> None:
    """Through the form, as a person would; ends on the home page."""
    page.goto("/accounts/login/")
    page.get_by_label("Username or e-mail address").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/")


assert django_settings.DEBUG is False, "The pages are tested as they are served in use."
