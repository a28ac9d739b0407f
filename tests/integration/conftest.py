"""A whole installation as ``manage.py up`` starts it: web, events worker, engine bridge, Ray, vLLM, Redis protocol.

Nothing is replaced but the base model, which is tiny and random, and served on the same path as any local model.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.events import TERMINAL_STATUSES
from engine.tiny import make_tiny_model
from portal.ops.installation import answers, free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240
PASSWORD = "correct horse battery"

ADD_BASE_MODEL = """
from portal.base_models.models import BaseModel
BaseModel.objects.create(id={id!r}, source="local", location={location!r}, context_length=192, max_lora_rank=8,
                         dtype="float32", description="")
"""
ADD_TENANT = """
from portal.tenants.services import add_member, create_api_token, create_tenant, create_user
tenant = create_tenant(name={slug!r}, slug={slug!r})
user = create_user(username={slug!r}, email={slug!r} + "@example.org", password={password!r})
add_member(tenant=tenant, user=user, role="owner")
print("token", create_api_token(tenant=tenant, user=user, name="test", scopes=["admin"])[1])
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("engine")


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.2)
    return value


class Installation:
    """A running ``manage.py up``."""

    def __init__(self, var: Path) -> None:
        self.var = var
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {
            **{key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL")},
            "MARLAAS_VAR": str(var),
            "MARLAAS_KV_CACHE_GIB": "0.1",
            "MARLAAS_ADAPTER_SLOTS": "2",
            "MARLAAS_MAX_SEQUENCES": "64",
            "MARLAAS_PROBE_TOLERANCE": "0.001",  # fp32 on both sides
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "COLUMNS": "200",
        }
        self.output = var / "up.out"

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", str(self.port)],
                cwd=ROOT, env=self.env, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        until(lambda: self._alive() and answers(f"{self.url}/healthz"), "the start")

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return True

    def stop(self) -> None:
        """As by Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def django(self, script: str) -> str:
        """Run Python in a Django shell of the installation; what it printed."""
        done = subprocess.run(
            [sys.executable, "manage.py", "shell", "--no-imports", "-c", script],
            cwd=ROOT, env=self.env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add_base_model(self, model_id: str, folder: Path) -> str:
        self.django(ADD_BASE_MODEL.format(id=model_id, location=str(folder)))
        return model_id

    def add_tenant(self, slug: str) -> Tenant:
        printed = self.django(ADD_TENANT.format(slug=slug, password=PASSWORD))
        token = next(line.split()[1] for line in printed.splitlines() if line.startswith("token "))
        return Tenant(self, slug, token)

    def log(self, name: str) -> str:
        return (self.var / "log" / f"{name}.log").read_text(errors="replace")


class Tenant:
    """A tenant's automation: the REST API with its token."""

    def __init__(self, installation: Installation, slug: str, token: str) -> None:
        self.slug = slug
        self.http = httpx.Client(
            base_url=f"{installation.url}/api/v1/", headers={"Authorization": f"Bearer {token}"}, timeout=30
        )

    def get(self, path: str, **arguments: Any) -> Any:
        response = self.http.get(path, **arguments)
        assert response.is_success, response.text
        return response.json()

    def post(self, path: str, **arguments: Any) -> Any:
        response = self.http.post(path, **arguments)
        assert response.is_success, response.text
        return response.json()

    def upload(self, rows: list[dict[str, Any]], name: str = "rows") -> str:
        content = "".join(json.dumps(row) + "\n" for row in rows)
        file = {"file": ("rows.jsonl", content.encode())}
        return str(self.post("datasets/", data={"name": name, "held_out_fraction": 0}, files=file)["id"])

    def reward(self, grader: dict[str, Any], name: str = "reward") -> str:
        return str(self.post("reward-functions/", json={"name": name, "spec": {"grader": grader}})["id"])

    def start_job(self, dataset: str, reward: str, base_model: str = "tiny", name: str = "job", **settings: Any) -> str:
        body = {"name": name, "base_model": base_model, "dataset_version": dataset, "reward_version": reward}
        return str(self.post("jobs/", json={**body, "settings": settings})["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(f"jobs/{job_id}/"))

    def wait(self, job_id: str) -> dict[str, Any]:
        """The job once it has ended."""
        job = {}

        def ended() -> bool:
            job.update(self.job(job_id))
            return job["status"] in TERMINAL_STATUSES

        until(ended, f"the end of job {job_id}")
        return job

    def wait_for_step(self, job_id: str, step: int) -> None:
        until(lambda: self.job(job_id)["step"] >= step, f"step {step} of job {job_id}")

    def events(self, job_id: str, kind: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = 0
        while page := self.get(f"jobs/{job_id}/events/", params={"after": after, "limit": 1000, "type": kind})[
            "events"
        ]:
            found += page
            after = page[-1]["seq"]
        return found


ROWS = [{"prompt": f"What is {a} + {b}?", "answer": a + b} for a in range(2, 8) for b in range(2, 8)]
ROWS = [{**row, "split": "held_out" if index % 4 == 0 else "train"} for index, row in enumerate(ROWS)]

SHORT = {"type": "brevity", "target": 5, "limit": 60}
"""A reward any model's samples vary in."""


def training(steps: int, **more: Any) -> dict[str, Any]:
    """Settings of a small job; it learns too slowly for its rewards to become equal."""
    return {
        "sampling": {"max_tokens": 12},
        "training": {"steps": steps, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-4},
        "lora": {"rank": 4, "alpha": 16},
        **more,
    }


@pytest.fixture(scope="package")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="package")
def installation(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[Installation]:
    running = Installation(tmp_path_factory.mktemp("installation"))
    running.start()
    running.add_base_model("tiny", tiny_folder)
    yield running
    running.stop()


@pytest.fixture(scope="package")
def ours(installation: Installation) -> Tenant:
    return installation.add_tenant("ours")


@pytest.fixture(scope="package")
def theirs(installation: Installation) -> Tenant:
    return installation.add_tenant("theirs")
