"""What tests start from: a tenant that owns one of everything, and events as the engine reports them."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from engine.events import (
    AdapterPublished,
    ControlApplied,
    Episode,
    Evaluated,
    Event,
    EventBatch,
    Payload,
    RolloutGroup,
    Span,
    StatusChanged,
    StepCommitted,
)
from engine.spec import adapter_name
from portal.adapters.models import AdapterVersion
from portal.base_models.services import BUNDLED_ID
from portal.datasets.models import DatasetUpload, DatasetVersion
from portal.datasets.services import create_dataset_version
from portal.datasets.uploads import append_to_upload, create_upload
from portal.environments.models import DocumentSet, EnvironmentToken
from portal.environments.services import create_document_set, create_environment_token
from portal.jobs.models import Job
from portal.jobs.services import create_job, ingest_events
from portal.rewards.models import RewardTrial, RewardVersion
from portal.rewards.services import create_reward_version
from portal.rewards.trial_services import Sampling, TrialRows, start_reward_trial
from portal.tenants.invitations import create_invitation
from portal.tenants.models import Role, Tenant, TenantExport
from portal.tenants.services import add_member, create_api_token, create_tenant, create_user

START = 1_700_000_000.0
WEIGHTS = b"weights of an adapter"


@dataclass
class Owned:
    """A tenant and what it owns."""

    user: User
    tenant: Tenant
    dataset_version: DatasetVersion
    reward_version: RewardVersion
    job: Job
    adapter: AdapterVersion
    reward_trial: RewardTrial
    document_set: DocumentSet
    environment_token: EnvironmentToken
    upload: DatasetUpload

    @cached_property
    def ids(self) -> dict[str, Any]:
        """Every id a route may take, by the name routes give it; what needs making is made on first use."""
        return {
            **build_extras(self),
            "tenant_id": self.tenant.pk,
            "dataset_id": self.dataset_version.dataset_id,
            "version_id": self.dataset_version.pk,
            "dataset_version_id": self.dataset_version.pk,
            "reward_function_id": self.reward_version.reward_function_id,
            "reward_id": self.reward_version.reward_function_id,
            "reward_version_id": self.reward_version.pk,
            "trial_id": self.reward_trial.pk,
            "job_id": self.job.pk,
            "adapter_id": self.adapter.pk,
            "document_set_id": self.document_set.pk,
            "environment_token_id": self.environment_token.pk,
            "upload_id": self.upload.pk,
        }


def build_extras(owned: Owned) -> dict[str, Any]:
    """An API token, an open invitation, a finished export and a group of episodes, by the names of their ids."""
    token, _ = create_api_token(tenant=owned.tenant, user=owned.user, name="script")
    address = f"invited@{owned.tenant.slug}.example"
    sent = create_invitation(
        tenant=owned.tenant, user=owned.user, email=address, role=Role.VIEWER, base_url="http://localhost/"
    )
    export = TenantExport.objects.create(
        tenant=owned.tenant,
        created_by=owned.user,
        status=TenantExport.Status.READY,
        expires_at=timezone.now() + timedelta(days=1),
        size_bytes=3,
    )
    export.path.parent.mkdir(parents=True, exist_ok=True)
    export.path.write_bytes(b"zip")
    return {
        "membership_id": owned.tenant.memberships.get(user=owned.user).pk,
        "token_id": token.pk,
        "invitation_id": sent.invitation.pk,
        "export_id": export.pk,
        "invitation_secret": sent.link.rstrip("/").rpartition("/")[2],
        **add_rollout(owned),
    }


def build_owned(name: str) -> Owned:
    """A tenant with an owner and one of everything: a running job, its first adapter version and all they need."""
    user = create_user(username=name, email=f"{name}@example.org", password="correct horse battery")
    tenant = create_tenant(name=name.title(), slug=name)
    add_member(tenant=tenant, user=user, role=Role.OWNER)
    dataset_version = create_dataset_version(
        tenant=tenant, user=user, name="sums", file=jsonl(*({"prompt": f"{n}+1?", "answer": n + 1} for n in range(10)))
    )
    reward_version = create_reward_version(
        tenant=tenant, user=user, name="numeric", spec={"grader": {"type": "numeric"}}
    )
    job = create_job(
        tenant=tenant,
        user=user,
        name="first job",
        base_model_id=BUNDLED_ID,
        dataset_version=dataset_version,
        reward_version=reward_version,
        settings={"training": {"steps": 2}},
    )
    path = write_adapter(job, version=1)
    ingest_events(batch=make_batch(job, status("running", "Training."), step(1), published(job, 1, path)))
    job.refresh_from_db()
    trial = start_reward_trial(
        tenant=tenant,
        user=user,
        reward_version=reward_version,
        rows=TrialRows(row={"prompt": "1+1?", "answer": 2}, completions=["2"]),
        sampling=Sampling(),
    )
    document_set = create_document_set(tenant=tenant, user=user, name="manual", file=jsonl({"text": "Open from 8."}))
    environment_token = create_environment_token(tenant=tenant, user=user, name="server", value=f"secret-of-{name}")
    adapter = job.adapter_versions.get()
    upload = create_upload(tenant=tenant, user=user, name="being sent")
    append_to_upload(
        tenant=tenant, user=user, upload_id=upload.pk, stream=jsonl({"prompt": "1?"}, {"prompt": "2?"}), offset=0
    )
    return Owned(
        user, tenant, dataset_version, reward_version, job, adapter, trial, document_set, environment_token, upload
    )


def jsonl(*rows: Any) -> io.BytesIO:
    return io.BytesIO("".join(json.dumps(row) + "\n" for row in rows).encode())


def write_adapter(job: Job, version: int, weights: bytes = WEIGHTS) -> Path:
    """An adapter's folder in the engine's store."""
    folder = Path(settings.MARLAAS_VAR) / "engine" / "jobs" / job.pk.hex / f"v{version}"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text('{"r": 16}')
    return folder


def read_stream(response: Any) -> bytes:
    """The body of a download."""

    async def read() -> bytes:
        return b"".join([chunk async for chunk in response.streaming_content])

    return async_to_sync(read)()


def make_events(job: Job, *payloads: Payload, first: int = 1) -> list[Event]:
    """Events numbered from ``first``, a second apart."""
    return [
        Event(job_id=job.pk.hex, seq=seq, time=START + seq, payload=payload)
        for seq, payload in enumerate(payloads, start=first)
    ]


def make_batch(job: Job, *payloads: Payload, first: int = 1) -> EventBatch:
    return EventBatch(events=make_events(job, *payloads, first=first))


def status(name: str, reason: str, following: str = "") -> StatusChanged:
    return StatusChanged(status=name, reason=reason, next=following)  # type: ignore[arg-type]


def control(revision: int, *, priority: int = 0, steps: int = 2) -> ControlApplied:
    return ControlApplied(revision=revision, priority=priority, steps=steps)


def step(number: int, **metrics: float) -> StepCommitted:
    return StepCommitted(step=number, adapter_version=number, metrics={"reward_mean": number / 10, **metrics})


def published(job: Job, version: int, path: Path | str = "/nowhere", final: bool = False) -> AdapterPublished:
    return AdapterPublished(
        adapter_version=version,
        name=adapter_name(job.pk.hex, version),
        step=version,
        path=str(path),
        sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        size_bytes=len(WEIGHTS),
        rank=16,
        final=final,
    )


def evaluation(accuracy: float, version: int | None = None) -> Evaluated:
    return Evaluated(step=version or 0, adapter_version=version, rows=8, accuracy=accuracy, reward_mean=accuracy)


def rollout(number: int, completion: str = "2") -> RolloutGroup:
    episode = Episode(completion=completion, reward=1.0, parts={}, tokens=1, adapter_version=0)
    return RolloutGroup(step=number, row=0, prompt="1+1?", answer="2", episodes=[episode])


def add_rollout(owned: Owned) -> dict[str, Any]:
    """Give the job a group of one episode; returns what routes call it by."""
    owned.job.refresh_from_db()
    seq = owned.job.last_seq + 1
    ingest_events(batch=make_batch(owned.job, rollout(2), first=seq))
    owned.job.refresh_from_db()
    return {"seq": seq, "position": 1}


def span(stage: str = "rollout") -> Span:
    return Span(stage=stage, worker="w0", start=START, end=START + 1)  # type: ignore[arg-type]
