"""Writes of jobs: create, cancel, ingest what the engine reports, and the commands to the engine.

Invariants: a job exists before its command is sent, and the command is sent again until an event shows that the engine
has it; an event is stored before it is acknowledged; a job's state follows its events in the order of their seq,
whatever the order they arrived in.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404
from django.utils import timezone
from pydantic import ValidationError

from engine.events import TERMINAL_STATUSES, Event, EventBatch
from engine.spec import JobSpec
from portal.base_models.selectors import find_base_model, list_base_models
from portal.datasets.models import DatasetVersion
from portal.errors import Conflict, FieldError, InvalidInput, QuotaExceeded, field_errors
from portal.jobs.models import Job, JobEvent
from portal.jobs.outbox import acknowledge_events, send_commands
from portal.jobs.projection import advance_job
from portal.json_values import make_storable, unstorable_fields
from portal.live.wake import wake_readers
from portal.rewards.models import RewardVersion
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer

logger = logging.getLogger(__name__)

SETTINGS_SECTIONS = ("environment", "sampling", "training", "lora", "evaluation", "limits", "seed")
WAITING_REASON = "Waiting for the engine to take the job."


def create_job(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    base_model_id: str,
    dataset_version: DatasetVersion,
    reward_version: RewardVersion,
    settings: dict[str, Any],
    idempotency_key: str = "",
) -> Job:
    """Create a job and send it to the engine.

    ``settings`` holds any of the sections ``environment``, ``sampling``, ``training``, ``lora``, ``evaluation``,
    ``limits`` and ``seed`` of ``engine.spec.JobSpec``; what is left out takes its default. The same
    ``idempotency_key`` with the same request returns the job it made the first time.

    Raises InvalidInput (field errors), QuotaExceeded, Conflict (key used for another request), NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    if dataset_version.dataset.tenant_id != tenant.pk or reward_version.reward_function.tenant_id != tenant.pk:
        raise Http404("No such dataset or reward version.")
    job_id = uuid.uuid4()
    spec = _build_spec(
        job_id=job_id,
        tenant=tenant,
        name=name,
        base_model_id=base_model_id,
        dataset_version=dataset_version,
        reward_version=reward_version,
        settings=settings,
    )
    request = [spec.name, base_model_id, str(dataset_version.pk), str(reward_version.pk), settings]
    request_sha256 = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    with transaction.atomic():
        # The lock makes quota and idempotency key race-free: one job of a tenant is created at a time.
        tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
        if idempotency_key:
            earlier = Job.objects.filter(tenant=tenant, idempotency_key=idempotency_key).first()
            if earlier is not None:
                return _same_request(earlier, request_sha256)
        _check_quota(tenant)
        job = Job.objects.create(
            id=job_id,
            tenant=tenant,
            name=spec.name,
            created_by_id=user.pk,
            base_model_id=base_model_id,
            dataset_version=dataset_version,
            reward_version=reward_version,
            spec=spec.model_dump(mode="json"),
            steps=spec.training.steps,
            reason=WAITING_REASON,
            next="It starts as soon as the engine has room.",
            idempotency_key=idempotency_key,
            request_sha256=request_sha256 if idempotency_key else "",
        )
        transaction.on_commit(lambda: send_commands(job_ids=[job_id]))
        transaction.on_commit(lambda: wake_readers([job]))
    return job


def _build_spec(
    *,
    job_id: uuid.UUID,
    tenant: Tenant,
    name: str,
    base_model_id: str,
    dataset_version: DatasetVersion,
    reward_version: RewardVersion,
    settings: dict[str, Any],
) -> JobSpec:
    errors = []
    base_model = find_base_model(base_model_id)
    if base_model is None:
        offered = ", ".join(model.pk for model in list_base_models()) or "none; ask the operator to enable one"
        errors.append(FieldError("base_model", f"Unknown base model {base_model_id!r}. Offered: {offered}."))
    if not name.strip():
        errors.append(FieldError("name", "Give the job a name."))
    if dataset_version.train_rows < 1:
        errors.append(FieldError("dataset_version", "This dataset version has no training rows."))
    errors += [
        FieldError(section, "is not a known setting; check the spelling")
        for section in sorted(settings.keys() - set(SETTINGS_SECTIONS))
    ]
    errors += unstorable_fields(settings)
    if errors or base_model is None:
        raise InvalidInput("The job was not created.", fields=errors)
    data = {
        **settings,
        "job_id": job_id.hex,
        "tenant_id": tenant.pk.hex,
        "name": name.strip(),
        "base_model": base_model.to_spec().model_dump(),
        "dataset": dataset_version.to_ref().model_dump(),
        "reward": reward_version.spec,
        "weight": tenant.weight,
    }
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise InvalidInput("The job was not created.", fields=field_errors(error, data)) from None


def _same_request(earlier: Job, request_sha256: str) -> Job:
    if earlier.request_sha256 != request_sha256:
        raise Conflict(
            "This idempotency key was used for a different job.", hint="Use a new key for every job you mean to create."
        )
    return earlier


def _check_quota(tenant: Tenant) -> None:
    active = Job.objects.filter(tenant=tenant).exclude(status__in=TERMINAL_STATUSES).count()
    if active >= tenant.max_active_jobs:
        raise QuotaExceeded(
            f"{tenant.name} has {active} active job(s), its limit is {tenant.max_active_jobs}.",
            hint="Wait until one finishes, cancel one, or ask the operator for a higher limit.",
        )


def cancel_job(*, tenant: Tenant, user: User, job_id: uuid.UUID) -> Job:
    """Ask the engine to cancel the job; harmless where it was asked already or the job has finished.

    The engine's ``status`` event makes it cancelled; until then the job is "cancelling". Raises NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        job = Job.objects.select_for_update().filter(tenant=tenant, pk=job_id).first()
        if job is None:
            raise Http404("No such job.")
        if not job.is_finished and job.cancel_requested_at is None:
            job.cancel_requested_at = timezone.now()
            job.save(update_fields=["cancel_requested_at"])
            transaction.on_commit(lambda: send_commands(job_ids=[job_id]))
            transaction.on_commit(lambda: wake_readers([job]))
    return job


def ingest_events(*, batch: EventBatch) -> dict[str, int]:
    """Store what is new of a batch, bring its jobs up to date, then acknowledge and wake readers.

    Repeats and batches out of order are harmless. Returns, by job id, the seq up to which the engine may forget:
    the highest one without a gap below; for a job the portal does not know, the highest in the batch.
    """
    by_job: dict[str, list[Event]] = defaultdict(list)
    for event in batch.events:
        by_job[event.job_id].append(event)
    with transaction.atomic():
        # Ordered locks: two ingestions of the same jobs wait for each other instead of deadlocking.
        jobs = list(Job.objects.select_for_update().filter(pk__in=list(by_job)).order_by("pk"))
        JobEvent.objects.bulk_create(
            [_to_row(job, event) for job in jobs for event in by_job[job.pk.hex] if event.seq > job.last_seq],
            ignore_conflicts=True,
        )
        changed = [job for job in jobs if advance_job(job)]
        acknowledged = {job.pk.hex: job.last_seq for job in jobs if job.last_seq}
        for job_id in by_job.keys() - {job.pk.hex for job in jobs}:
            logger.warning("Dropped %d event(s) of job %s, which does not exist", len(by_job[job_id]), job_id)
            acknowledged[job_id] = max(event.seq for event in by_job[job_id])
        transaction.on_commit(lambda: acknowledge_events(acknowledged))
        transaction.on_commit(lambda: wake_readers(changed))
    return acknowledged


def _to_row(job: Job, event: Event) -> JobEvent:
    return JobEvent(
        job=job,
        seq=event.seq,
        type=event.payload.type,
        time=datetime.fromtimestamp(event.time, tz=UTC),
        payload=make_storable(event.payload.model_dump(mode="python")),
    )
