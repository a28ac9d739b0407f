"""Versions of the software the portal runs."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from django.db import connection

PACKAGES = ("marlaas", "django", "channels", "celery", "redis", "uvicorn", "psycopg")


@cache
def portal_versions() -> dict[str, str]:
    """By package; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def database_version() -> str:
    """``SQLite 3.46.1`` or ``PostgreSQL 15.7``."""
    if connection.vendor == "sqlite":
        return f"SQLite {'.'.join(map(str, connection.Database.sqlite_version_info))}"  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        return f"PostgreSQL {cursor.fetchone()[0].split()[0]}"
