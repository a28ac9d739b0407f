"""The demo: two tenants, a job each, at once, through the same services as the portal and the API use."""

from __future__ import annotations

import asyncio
import io
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import transaction
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from portal.adapters.selectors import list_adapter_versions
from portal.base_models.selectors import list_base_models
from portal.datasets.services import create_dataset_version
from portal.jobs.history import step_points
from portal.jobs.models import Job
from portal.jobs.selectors import get_job
from portal.jobs.services import create_job
from portal.ops.demo_tasks import DemoTask, demo_tasks
from portal.rewards.services import create_reward_version
from portal.tenants.models import Role, Tenant
from portal.tenants.selectors import get_membership
from portal.tenants.services import add_member, create_tenant, create_user

LOOK_SECONDS = 0.5
"""How often the terminal looks at the jobs."""


@dataclass(frozen=True)
class Login:
    tenant: str
    user: str
    password: str


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
    wall_seconds: float | None
    adapter: str
    sha256: str


def seed_tenants(seed: int) -> tuple[list[Login], list[Job]]:
    """Make the tenants where they are missing, upload this run's datasets and rewards, start a job of each."""
    logins, prepared = [], []
    for task in demo_tasks(seed):
        login, tenant, user = _tenant(task)
        logins.append(login)
        dataset = create_dataset_version(tenant=tenant, user=user, name=task.dataset, file=io.BytesIO(task.jsonl()))
        reward = create_reward_version(tenant=tenant, user=user, name=task.reward, spec=task.reward_spec)
        prepared.append((tenant, user, task, dataset, reward))
    base_model = list_base_models()[0].pk
    jobs = [
        create_job(
            tenant=tenant, user=user, name=task.job, base_model_id=base_model, dataset_version=dataset,
            reward_version=reward, settings=task.settings,
        )
        for tenant, user, task, dataset, reward in prepared
    ]  # fmt: skip
    return logins, jobs


def _tenant(task: DemoTask) -> tuple[Login, Tenant, User]:
    """The tenant and its user, whose password is new at every demo: it is only ever shown in the terminal."""
    password = secrets.token_urlsafe(9)
    with transaction.atomic():
        tenant = Tenant.objects.filter(slug=task.slug).first() or create_tenant(name=task.tenant, slug=task.slug)
        user = User.objects.filter(username=task.user).first()
        if user is None:
            user = create_user(username=task.user, email=f"{task.user}@{task.slug}.example", password=password)
        user.set_password(password)
        user.save()
        if get_membership(tenant, user) is None:
            add_member(tenant=tenant, user=user, role=Role.OWNER)
    return Login(task.tenant, task.user, password), tenant, user


async def follow(jobs: list[Job], say: Callable[[str], None], live: bool) -> list[Outcome]:
    """Show progress until every job has ended: bars on a terminal (``live``), else a line a step."""
    progress = Progress(
        TextColumn("{task.fields[tenant]:<14}"), BarColumn(bar_width=30),
        TextColumn("{task.completed:>3}/{task.total}"), TextColumn("{task.fields[note]}"), TimeElapsedColumn(), disable=not live, refresh_per_second=4,
    )  # fmt: skip
    with progress:
        bars = {job.pk: progress.add_task("", total=job.steps, tenant=job.tenant.name, note="") for job in jobs}
        shown: dict[TaskID, str] = {}
        while True:
            jobs = [await sync_to_async(get_job)(job.tenant, job.pk) for job in jobs]
            for job in jobs:
                note = _note(job)
                progress.update(bars[job.pk], completed=job.step, note=note)
                line = f"{job.tenant.name}: step {job.step}/{job.steps}, {note}"
                if not live and shown.get(bars[job.pk]) != line:
                    shown[bars[job.pk]] = line
                    say(f"[{time.strftime('%H:%M:%S')}] {line}")
            if all(job.is_finished for job in jobs):
                break
            await asyncio.sleep(LOOK_SECONDS)
    return [await sync_to_async(outcome)(job) for job in jobs]


def _note(job: Job) -> str:
    if job.status == "running" and job.metrics:
        return f"reward {job.metrics.get('reward_mean', 0):.2f}, accuracy {job.metrics.get('accuracy', 0):.2f}"
    return job.status


def outcome(job: Job) -> Outcome:
    """What the job's events and its adapter say of it."""
    points = [point["metrics"] for point in step_points(job)]
    final = list_adapter_versions(job.tenant, job.pk).filter(final=True).first()
    wall = (job.finished_at - job.started_at).total_seconds() if job.finished_at and job.started_at else None
    return Outcome(
        tenant=job.tenant.name,
        job=job.name,
        job_id=job.pk.hex,
        status=job.status,
        reason=job.reason,
        held_out_accuracy_base=job.base_accuracy,
        held_out_accuracy_trained=job.accuracy,
        reward_first_step=points[0]["reward_mean"] if points else None,
        reward_last_step=points[-1]["reward_mean"] if points else None,
        steps=job.step,
        tokens_sampled=int(sum(metrics["tokens_sampled"] for metrics in points)),
        tokens_trained=int(sum(metrics["tokens_trained"] for metrics in points)),
        wall_seconds=wall,
        adapter=f"{final.path}/adapter_model.safetensors" if final else "",
        sha256=final.sha256 if final else "",
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
            f"    held-out accuracy   base {_number(o.held_out_accuracy_base)} -> trained "
            f"{_number(o.held_out_accuracy_trained)}",
            f"    mean reward         first step {_number(o.reward_first_step)} -> last step "
            f"{_number(o.reward_last_step)}",
            f"    wall time           {o.wall_seconds or 0:.0f} s, {o.steps} steps, {o.tokens_sampled} tokens sampled",
            f"    adapter             {o.adapter or 'none'}",
            f"    sha256              {o.sha256 or 'none'}",
        ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def as_json(outcomes: list[Outcome], seed: int, seconds: float) -> dict[str, object]:
    """What ``--json`` writes."""
    return {"seed": seed, "total_seconds": round(seconds, 1), "tenants": [asdict(o) for o in outcomes]}
