"""Runs pytest on a scratch PostgreSQL: ``python -m tests.postgres [arguments of pytest]``; see ``make test-postgres``.

The server listens on a unix socket in a folder of its own alone, trusts whoever may enter that folder, and is gone with
all its data at the end. It refuses to run as root, so it runs as ``nobody`` where we are root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

NOT_INSTALLED = "PostgreSQL is not installed here (no initdb found), so nothing was tested on it."
START_SECONDS = 60.0
DEFAULT_RUNS = [
    ["tests/portal", "-n", "2", "--dist", "loadfile"],
    ["tests/browser/test_first_hour.py"],
]
"""The portal's whole suite, and a journey through the pages in a real browser."""


def find_program(name: str) -> str | None:
    """Its path: on PATH, or where Debian puts the newest version."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


@contextmanager
def scratch_server(initdb: str, postgres: str) -> Iterator[str]:
    """A running server; yields its DATABASE_URL."""
    folder = Path(tempfile.mkdtemp(prefix="marlaas-postgres-"))
    as_whom: dict[str, Any] = {}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        as_whom = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        data, sockets = folder / "data", folder
        subprocess.run(
            [initdb, "--pgdata", str(data), "--username", "marlaas", "--auth", "trust", "--encoding", "UTF8",
             "--no-locale", "--no-sync"],
            cwd=folder, check=True, stdout=subprocess.DEVNULL, **as_whom,
        )  # fmt: skip
        server = subprocess.Popen(
            [postgres, "-D", str(data), "-k", str(sockets), "-c", "listen_addresses=", "-c", "fsync=off",
             "-c", "max_connections=50"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=(folder / "log").open("wb"), start_new_session=True,
            **as_whom,
        )  # fmt: skip
        try:
            _until_ready(server, sockets, folder / "log")
            yield f"postgres://marlaas@/{sockets}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown: connections still open are cut
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:  # on a busy machine
                server.send_signal(signal.SIGQUIT)  # at once
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _until_ready(server: subprocess.Popen[bytes], sockets: Path, log: Path) -> None:
    """Until it answers: its socket is there before it takes connections."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(host=str(sockets), user="marlaas", dbname="postgres").close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start:\n{log.read_text(errors='replace')}") from None
            time.sleep(0.1)
        else:
            return


def main(arguments: list[str]) -> int:
    initdb, postgres = find_program("initdb"), find_program("postgres")
    if initdb is None or postgres is None:
        print(NOT_INSTALLED)
        return 0
    with scratch_server(initdb, postgres) as url:
        environment = {**os.environ, "DATABASE_URL": url}
        results = [
            subprocess.run([sys.executable, "-m", "pytest", *run], env=environment).returncode
            for run in ([arguments] if arguments else DEFAULT_RUNS)
        ]
    return max(results, key=abs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
