"""The demo: two tenants, a job each, at once, through the REST API."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engine.events import TERMINAL_STATUSES
from portal.ops.demo_client import DemoClient
from portal.ops.demo_tasks import DemoTask, demo_tasks
from portal.tenants.models import Role, Scope, Tenant
from portal.tenants.selectors import get_membership, list_api_tokens
from portal.tenants.services import add_member, create_api_token, create_tenant, create_user, revoke_api_token

LOOK_SECONDS = 1.0
"""How often the terminal looks at the jobs."""
TOKEN_NAME = "demo"


@dataclass(frozen=True)
class Login:
    """How to get in as a demo tenant. Password and token are new at every demo: they are only shown in the terminal."""

    task: DemoTask
    password: str
    token: str


@dataclass(frozen=True)
class Outcome:
    """How one tenant's job ended."""

    tenant: str
    job: str
    job_id: str
    status: str
    reason: str
    held_out_accuracy_base: float | None
    held_out_accuracy_trained: float | None
    reward_first_step: float | None
    reward_last_step: float | None
    steps: int
    tokens_sampled: int
    tokens_trained: int
    wall_seconds: float
    adapter: str
    sha256: str


def prepare_tenants(seed: int) -> list[Login]:
    """Make the demo's tenants and users where they are missing; new passwords and API tokens."""
    return [_login(task) for task in demo_tasks(seed)]


@transaction.atomic
def _login(task: DemoTask) -> Login:
    password = secrets.token_urlsafe(9)
    tenant = Tenant.objects.filter(slug=task.slug).first() or create_tenant(name=task.tenant, slug=task.slug)
    user = User.objects.filter(username=task.user).first()
    if user is None:
        user = create_user(username=task.user, email=f"{task.user}@{task.slug}.example", password=password)
    user.set_password(password)
    user.save()
    if get_membership(tenant, user) is None:
        add_member(tenant=tenant, user=user, role=Role.OWNER)
    for earlier in list_api_tokens(tenant, user).filter(name=TOKEN_NAME):
        revoke_api_token(tenant=tenant, user=user, token_id=earlier.pk)
    _, token = create_api_token(
        tenant=tenant,
        user=user,
        name=TOKEN_NAME,
        scopes=[Scope.JOBS_WRITE, Scope.DATASETS_WRITE, Scope.REWARDS_WRITE, Scope.ADAPTERS_READ],
    )
    return Login(task, password, token)


async def run(address: str, logins: list[Login], folder: Path, say: Callable[[str], None], live: bool) -> list[Outcome]:
    """Start every tenant's job, show progress until all have ended, download the adapters into ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    clients = [DemoClient(address, login.token) for login in logins]
    await asyncio.gather(*(client.cancel_jobs() for client in clients))
    job_ids = await asyncio.gather(
        *(client.start_job(login.task) for client, login in zip(clients, logins, strict=True))
    )
    runs = list(zip(logins, clients, job_ids, strict=True))
    bars = Progress(
        TextColumn("{task.fields[tenant]:<14}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:>3}/{task.total}  {task.fields[note]}"),
        TimeElapsedColumn(),
        disable=not live,
        refresh_per_second=4,
    )
    with bars:
        await asyncio.gather(*(_follow(login.task, client, job_id, bars, say) for login, client, job_id in runs))
    outcomes = [await _outcome(login.task, client, job_id, folder / login.task.slug) for login, client, job_id in runs]
    await asyncio.gather(*(client.__aexit__() for client in clients))
    return outcomes


async def _follow(task: DemoTask, client: DemoClient, job_id: str, bars: Progress, say: Callable[[str], None]) -> None:
    """Keep a bar up to date until the job has ended; without bars, say a line whenever something changes."""
    bar = bars.add_task("", total=task.steps, tenant=task.tenant, note="")
    said = ""
    while True:
        job = await client.job(job_id)
        note = _note(job)
        bars.update(bar, completed=job["step"], note=note)
        line = f"{task.tenant}: step {job['step']}/{job['steps']}, {note}"
        if bars.disable and line != said:
            said = line
            say(f"[{time.strftime('%H:%M:%S')}] {line}")
        if job["status"] in TERMINAL_STATUSES:
            bars.stop_task(bar)
            return
        await asyncio.sleep(LOOK_SECONDS)


def _note(job: dict[str, Any]) -> str:
    if job["status"] == "running" and job["metrics"]:
        return f"reward {job['metrics']['reward_mean']:.2f}, accuracy {job['metrics']['accuracy']:.2f}"
    return str(job["status"])


async def _outcome(task: DemoTask, client: DemoClient, job_id: str, folder: Path) -> Outcome:
    job = await client.job(job_id)
    metrics = await client.step_metrics(job_id)
    adapter = await client.download_adapter(job_id, folder)
    started, finished = (datetime.fromisoformat(job[key] or job["created_at"]) for key in ("started_at", "finished_at"))
    return Outcome(
        tenant=task.tenant,
        job=task.job,
        job_id=job_id,
        status=job["status"],
        reason=job["reason"],
        held_out_accuracy_base=job["base_accuracy"],
        held_out_accuracy_trained=job["accuracy"],
        reward_first_step=metrics[0]["reward_mean"] if metrics else None,
        reward_last_step=metrics[-1]["reward_mean"] if metrics else None,
        steps=job["step"],
        tokens_sampled=int(sum(step["tokens_sampled"] for step in metrics)),
        tokens_trained=int(sum(step["tokens_trained"] for step in metrics)),
        wall_seconds=round((finished - started).total_seconds(), 1),
        adapter=str(adapter[0]) if adapter else "",
        sha256=adapter[1] if adapter else "",
    )


def failure(outcomes: list[Outcome]) -> str | None:
    """Why the demo did not succeed, or None."""
    failed = [f"{o.tenant}: {o.status}: {o.reason}" for o in outcomes if o.status != "succeeded"]
    return "; ".join(failed) or None


def report(outcomes: list[Outcome]) -> str:
    """The outcomes as lines for a terminal."""
    lines = []
    for o in outcomes:
        lines += [
            f"{o.tenant} ({o.job}): {o.status}. {o.reason}",
            f"    held-out accuracy   base {_number(o.held_out_accuracy_base)} -> "
            f"trained {_number(o.held_out_accuracy_trained)}",
            f"    mean reward         first step {_number(o.reward_first_step)} -> "
            f"last step {_number(o.reward_last_step)}",
            f"    wall time           {o.wall_seconds:.0f} s, {o.steps} steps, {o.tokens_sampled} tokens sampled",
            f"    adapter             {o.adapter or 'none'}",
            f"    sha256              {o.sha256 or 'none'}",
        ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def as_json(outcomes: list[Outcome], seed: int, seconds: float) -> dict[str, object]:
    """What ``--json`` writes."""
    return {"seed": seed, "total_seconds": round(seconds, 1), "tenants": [asdict(o) for o in outcomes]}
