"""What holds for the portal as a whole."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

from portal.settings import kombu_url, read_or_create_secret_key

REPOSITORY = Path(__file__).parents[2]


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "manage.py", *arguments],
        cwd=REPOSITORY,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_deployment_checks_pass_with_https(tmp_path):
    done = manage("check", "--deploy", "--fail-level", "WARNING", MARLAAS_VAR=str(tmp_path), HTTPS="true")
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_migrations_match_the_models(db):
    call_command("makemigrations", "--check", "--dry-run", stdout=io.StringIO())


def test_the_schema_is_made_without_warnings():
    out = io.StringIO()
    call_command("spectacular", "--fail-on-warn", "--validate", stdout=out)
    assert "/api/v1/jobs/{job_id}/events/" in out.getvalue()


def test_the_secret_key_is_made_once_and_private(tmp_path):
    folder = tmp_path / "installation"
    folder.mkdir()
    path = folder / "secret_key"
    key = read_or_create_secret_key(path)
    assert len(key) >= 50
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_or_create_secret_key(path) == key
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(
    ("redis_py", "kombu"),
    [
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("rediss://host:6380/1", "rediss://host:6380/1"),
        ("", ""),
    ],
)
def test_one_address_serves_broker_and_channel_layer(redis_py, kombu):
    assert kombu_url(redis_py) == kombu


def test_headers(client, db):
    answer = client.get("/accounts/login/")
    policy = answer["Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == directives["base-uri"] == directives["frame-ancestors"] == "'none'"
    assert directives["connect-src"] == directives["form-action"] == "'self'"
    assert directives["img-src"] == "'self' data:"
    assert "unsafe" not in policy
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["Referrer-Policy"] == "same-origin"
