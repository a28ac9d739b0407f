"""Automation without a browser: the guides' commands and programs against the real web server, as readers run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portal.api.guides import render_sample
from portal.jobs.models import Job
from portal.rewards.models import RewardVersion
from portal.tenants.models import ApiToken, Scope
from portal.tenants.services import create_api_token, revoke_api_token
from tests.browser.conftest import Server, wait_until
from tests.browser.feeding import JobFeed
from tests.portal.factories import Owned

Aside = Callable[..., Any]
QUESTIONS = [("What is 2 + 2?", "4")]


@pytest.fixture
def run(portal: Server, ours: Owned, aside: Aside, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a sample with a token in the environment, as its guide says."""
    _, secret = aside(
        create_api_token, tenant=ours.tenant, user=ours.user, name="automation", scopes=[Scope.ADMIN, Scope.READ]
    )

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        file = tmp_path / name
        file.write_text(render_sample(name, f"{portal.url}/api/v1"))
        interpreter = [sys.executable] if name.endswith(".py") else ["sh", "-eu"]
        return subprocess.Popen(
            [*interpreter, name, *arguments],
            cwd=tmp_path,
            env={**os.environ, "MARLAAS_TOKEN": secret},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors
    return output


def train(aside: Aside, job: Job) -> None:
    """What the engine would report."""
    feed = JobFeed(job)
    feed.seq = job.last_seq
    aside(feed.status, "running", "The job has its place in the pool.")
    aside(feed.step, 1, 0.3, QUESTIONS)
    aside(feed.step, 2, 0.9, QUESTIONS)
    aside(feed.adapter, 2, final=True)
    aside(feed.status, "succeeded", "All steps are done.")


def made_job(aside: Aside) -> Job:
    wait_until(lambda: aside(Job.objects.filter(name="quickstart").exists), "The job")
    return aside(Job.objects.get, name="quickstart")


def test_the_quickstart_from_rows_to_the_adapter(run: Any, aside: Aside, tmp_path: Path) -> None:
    process = run("quickstart.sh")
    job = made_job(aside)
    train(aside, job)
    output = finish(process)
    assert f"job {job.pk}" in output
    assert [line for line in output.splitlines() if line.startswith("event: ")] == [
        "event: status",
        "event: step",
        "event: step",
        "event: adapter",
        "event: status",
        "event: end",
    ]
    with zipfile.ZipFile(tmp_path / "adapter.zip") as archive:
        assert "adapter_model.safetensors" in archive.namelist()


def test_programs_in_python(run: Any, portal: Server, ours: Owned, aside: Aside) -> None:
    job_id = finish(run("quickstart.py")).strip()
    job = made_job(aside)
    assert str(job.pk) == job_id
    listed = finish(run("lists.py"))
    assert f"{job_id} quickstart queued" in listed and "first job running" in listed
    process = run("events.py", job_id)
    feed = JobFeed(job)
    aside(feed.status, "running", "The job has its place in the pool.")
    assert process.stdout.readline() == "running The job has its place in the pool.\n"
    portal.stop()  # a cut, in which things go on
    aside(feed.step, 1, 0.3, QUESTIONS)
    portal.start()
    aside(feed.step, 2, 0.9, QUESTIONS)
    aside(feed.status, "succeeded", "All steps are done.")
    rest = finish(process).splitlines()
    assert [line.split()[:2] for line in rest] == [["step", "1"], ["step", "2"], ["succeeded", "All"]]


def test_a_request_sent_twice_and_uploads(run: Any, aside: Aside) -> None:
    first, second = (json.loads(line) for line in finish(run("idempotency.sh")).splitlines())
    assert first == second
    assert aside(RewardVersion.objects.filter(reward_function__name="number").count) == 1
    assert finish(run("uploads.sh")).count('"sha256"') >= 2


def test_a_revoked_token_ends_the_stream(run: Any, ours: Owned, aside: Aside) -> None:
    process = run("events.sh")
    assert process.stdout.readline().startswith("retry")
    token = aside(ApiToken.objects.get, name="automation")
    aside(revoke_api_token, tenant=ours.tenant, user=ours.user, token_id=token.pk)
    feed = JobFeed(ours.job)
    feed.seq = ours.job.last_seq
    aside(feed.status, "paused", "Paused on request.")
    output = finish(process)
    assert '"reason": "revoked"' in output and "Paused" not in output
