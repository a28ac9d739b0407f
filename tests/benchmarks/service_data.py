"""What part D's portal holds, and the events its engine would send. Needs Django to be set up."""

from __future__ import annotations

import io
import json
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from engine.events import (
    AdapterPublished,
    Episode,
    Event,
    Payload,
    RolloutGroup,
    Span,
    StatusChanged,
    StepCommitted,
)
from engine.spec import adapter_name
from portal.base_models.services import BUNDLED_ID
from portal.datasets.services import create_dataset_version
from portal.jobs.models import Job, JobEvent
from portal.jobs.specs import build_spec
from portal.rewards.services import create_reward_version
from portal.tenants.models import Role, Scope, Tenant
from portal.tenants.services import add_member, create_api_token, create_tenant, create_user

GROUPS, EPISODES = 8, 4
METRICS = dict.fromkeys(
    (
        "reward_mean", "reward_std", "accuracy", "loss", "grad_norm", "entropy", "kl", "ratio_mean", "clip_fraction",
        "learning_rate", "tokens_sampled", "tokens_trained", "rollout_seconds", "train_seconds", "publish_seconds",
    ),
    0.5,
)  # fmt: skip


@dataclass
class Seeded:
    """One tenant."""

    tenant: Tenant
    user: User
    cookie: str
    """Of a signed-in session."""
    token: str
    template: dict[str, Any]
    """Fields of a job."""
    jobs: list[Job] = field(default_factory=list)
    """That are alive."""


def seed(tenants: int, live_jobs: int, old_jobs: int) -> list[Seeded]:
    """Tenants with live jobs; the first has so many finished ones besides, each with a few events."""
    found = [seed_tenant(index) for index in range(tenants)]
    for index in range(live_jobs):
        owner = found[index % tenants]
        owner.jobs.append(make_job(owner, f"live {index}"))
    for owner in found:
        Job.objects.bulk_create(owner.jobs)
    first = found[0]
    for start in range(0, old_jobs, 1000):
        jobs = [finished(first, index) for index in range(start, min(start + 1000, old_jobs))]
        Job.objects.bulk_create(jobs)
        JobEvent.objects.bulk_create([row for job in jobs for row in past_events(job)])
    # The newest are what lists show first.
    Job.objects.filter(name__startswith="old").update(created_at=datetime.now(UTC) - timedelta(days=1))
    return found


def seed_tenant(index: int) -> Seeded:
    name = f"tenant-{index}"
    tenant = create_tenant(name=name, slug=name)
    user = create_user(username=name, email=f"{name}@example.org", password=uuid.uuid4().hex)
    add_member(tenant=tenant, user=user, role=Role.OWNER)
    rows = "".join(json.dumps({"prompt": f"{n}+1?", "answer": str(n + 1)}) + "\n" for n in range(20))
    dataset = create_dataset_version(tenant=tenant, user=user, name="sums", file=io.BytesIO(rows.encode()))
    reward = create_reward_version(tenant=tenant, user=user, name="numeric", spec={"grader": {"type": "numeric"}})
    spec = build_spec(
        job_id=uuid.uuid4(), tenant=tenant, name="job", base_model_id=BUNDLED_ID, dataset_version=dataset,
        reward_version=reward, settings={"training": {"steps": 100_000}}, start_from=None,
    )  # fmt: skip
    client = Client()
    client.force_login(user)
    token = create_api_token(tenant=tenant, user=user, name="bench", scopes=list(Scope))[1]
    template = {
        "tenant": tenant, "created_by": user, "base_model_id": BUNDLED_ID, "dataset_version": dataset,
        "reward_version": reward, "spec": spec.model_dump(mode="json"), "steps": 100_000, "wanted_steps": 100_000,
    }  # fmt: skip
    return Seeded(tenant, user, client.cookies["sessionid"].value, token, template)


def make_job(owner: Seeded, name: str, **fields: Any) -> Job:
    job_id = uuid.uuid4()
    spec = {**owner.template["spec"], "job_id": job_id.hex, "name": name}
    now = datetime.now(UTC)  # the engine has it: no command waits to be sent
    return Job(**{**owner.template, "id": job_id, "name": name, "spec": spec, "submit_sent_at": now, **fields})


def finished(owner: Seeded, index: int) -> Job:
    status = ("succeeded", "failed", "cancelled")[index % 3]
    return make_job(
        owner, f"old {index}", status=status, reason="All steps are committed.", step=3, last_seq=5, metrics=METRICS,
        started_at=datetime.now(UTC), finished_at=datetime.now(UTC),
    )  # fmt: skip


def past_events(job: Job) -> list[JobEvent]:
    payloads: list[Payload] = [
        StatusChanged(status="running", reason="Training."),
        *(StepCommitted(step=step, adapter_version=step, metrics=METRICS) for step in (1, 2, 3)),
        StatusChanged(status=job.status, reason="It ended."),  # type: ignore[arg-type]
    ]
    return [
        JobEvent(job=job, seq=seq, type=payload.type, time=datetime.now(UTC), payload=payload.model_dump())
        for seq, payload in enumerate(payloads, start=1)
    ]


class Feed:
    """A live job's events, step after step, as the engine numbers and mixes them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.seq = 0
        self._coming: list[Payload] = [StatusChanged(status="running", reason="Training.")]
        self._step = 0

    def next(self, moment: float) -> Event:
        """The next event; it happens at ``moment``."""
        if not self._coming:
            self._step += 1
            self._coming = self._make_step(self._step)
        self.seq += 1
        return Event(job_id=self.job.pk.hex, seq=self.seq, time=moment, payload=self._coming.pop(0))

    def _make_step(self, step: int) -> list[Payload]:
        now = time.time()
        episode = Episode(completion="The answer is 46. " * 4, reward=0.5, parts={}, tokens=24, adapter_version=step)
        group = RolloutGroup(step=step, row=0, prompt="What is 12 + 34?", answer="46", episodes=[episode] * EPISODES)
        stages = ("queue", "rollout", "environment", "train", "publish")
        return [
            StepCommitted(step=step, adapter_version=step, metrics=METRICS),
            AdapterPublished(
                adapter_version=step, name=adapter_name(self.job.pk.hex, step), step=step, path="/nowhere",
                sha256="0" * 64, size_bytes=1_000_000, rank=16,
            ),
            *[group] * GROUPS,
            *(Span(stage=stage, worker="w", start=now - 1, end=now, tokens=100) for stage in stages),  # type: ignore[arg-type]
        ]  # fmt: skip
