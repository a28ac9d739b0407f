"""Writes of jobs: create, control, ingest what the engine reports, and the commands to the engine.

Invariants: a job exists before its command is sent, and the command is sent again until an event shows that the engine
has it; an event is stored before it is acknowledged; a job's state follows its events in the order of their seq,
whatever the order they arrived in. What a tenant wants of a job changes under the job's lock, one revision a change,
so no change is lost to another made at the same time. A tenant's lock that a job's may follow is ``no_key``: ingestion
holds jobs while it writes rows that refer to their tenant, which would wait for a stronger lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404
from pydantic import ValidationError

from engine.events import EventBatch
from engine.spec import JobControl
from portal.adapters.models import AdapterVersion
from portal.audit.services import record_change
from portal.datasets.models import DatasetVersion
from portal.environments.selectors import environment_faults
from portal.errors import Conflict, FieldError, InvalidInput, field_errors
from portal.jobs.models import OPEN_STATUSES, Job, JobEvent
from portal.jobs.outbox import acknowledge_events, send_commands
from portal.jobs.projection import CHUNK, advance_jobs
from portal.jobs.specs import build_spec
from portal.jobs.stored import StoredEvent, jobs_with_a_gap, read_stored, store_events, to_stored
from portal.live.wake import wake_readers
from portal.rewards.models import RewardVersion
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer
from portal.usage.enforcement import enforce_quotas
from portal.usage.limits import require_place, require_quota_left, require_room_for_job, require_steps
from portal.usage.models import QuotaHold

logger = logging.getLogger(__name__)

WAITING_REASON = "Waiting for the engine to take the job."


def create_job(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    base_model_id: str,
    dataset_version: DatasetVersion | None,
    reward_version: RewardVersion,
    settings: dict[str, Any],
    start_from: AdapterVersion | None = None,
    idempotency_key: str = "",
) -> Job:
    """Create a job and send it to the engine.

    ``dataset_version`` may be None where the environment makes its own rows.
    ``settings`` holds any of the sections ``environment``, ``sampling``, ``training``, ``lora``, ``evaluation``,
    ``limits`` and ``seed`` of ``engine.spec.JobSpec``; what is left out takes its default. With ``start_from`` the job
    continues from that adapter version, whose base model and LoRA settings it must have; the latter are its default.
    The same ``idempotency_key`` with the same request returns the job it made the first time.

    Raises InvalidInput (field errors), QuotaExceeded, Conflict (key used for another request), NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    require_own(tenant=tenant, dataset_version=dataset_version, reward_version=reward_version, start_from=start_from)
    job_id = uuid.uuid4()
    spec = build_spec(
        job_id=job_id,
        tenant=tenant,
        name=name,
        base_model_id=base_model_id,
        dataset_version=dataset_version,
        reward_version=reward_version,
        settings=settings,
        start_from=start_from,
    )
    request = [spec.name, base_model_id, str(dataset_version and dataset_version.pk), str(reward_version.pk), settings]
    if start_from is not None:
        request.append(str(start_from.pk))
    request_sha256 = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    with transaction.atomic():
        # The lock makes quota and idempotency key race-free: one job of a tenant is created at a time.
        tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        if idempotency_key:
            earlier = Job.objects.filter(tenant=tenant, idempotency_key=idempotency_key).first()
            if earlier is not None:
                return _same_request(earlier, request_sha256)
        if faults := environment_faults(tenant, spec.environment):
            raise InvalidInput("The job was not created.", fields=faults)
        require_room_for_job(tenant=tenant, steps=spec.training.steps)
        job = Job.objects.create(
            id=job_id,
            tenant=tenant,
            name=spec.name,
            created_by_id=user.pk,
            base_model_id=base_model_id,
            dataset_version=dataset_version,
            reward_version=reward_version,
            start_from=start_from,
            spec=spec.model_dump(mode="json"),
            steps=spec.training.steps,
            wanted_steps=spec.training.steps,
            reason=WAITING_REASON,
            next="It starts as soon as the engine has room.",
            idempotency_key=idempotency_key,
            request_sha256=request_sha256 if idempotency_key else "",
        )
        record_change(tenant=tenant, user=user, action="job.created", target=job, after=_described(job))
        transaction.on_commit(lambda: send_commands(job_ids=[job_id]))
        transaction.on_commit(lambda: wake_readers([job]))
    return job


def require_own(
    *,
    tenant: Tenant,
    dataset_version: DatasetVersion | None,
    reward_version: RewardVersion,
    start_from: AdapterVersion | None,
) -> None:
    """Raises Http404 where something a job is to be made of is not the tenant's."""
    if dataset_version is not None and dataset_version.dataset.tenant_id != tenant.pk:
        raise Http404("No such dataset version.")
    if reward_version.reward_function.tenant_id != tenant.pk:
        raise Http404("No such reward version.")
    if start_from is not None and start_from.job.tenant_id != tenant.pk:
        raise Http404("No such adapter version.")


def _described(job: Job) -> dict[str, Any]:
    """What the audit log says of a new job."""
    return {
        "base_model": job.base_model_id,
        "dataset": job.rows_from,
        "reward": str(job.reward_version),
        "start_from": job.start_from.name if job.start_from else None,
        "steps": job.steps,
    }


def _same_request(earlier: Job, request_sha256: str) -> Job:
    if earlier.request_sha256 != request_sha256:
        raise Conflict(
            "This idempotency key was used for a different job.", hint="Use a new key for every job you mean to create."
        )
    return earlier


def pause_job(*, tenant: Tenant, user: User, job_id: uuid.UUID) -> Job:
    """Ask the engine to pause the job; it gives up its place and keeps every committed step.

    Once paused it does not count towards ``max_active_jobs``. One that a quota has paused then stays so when the quota
    has room again. Raises Conflict for a job that has ended or is being
    cancelled, NotAllowed, Http404.
    """
    return _change_control(tenant=tenant, user=user, job_id=job_id, wants_paused=True)


def resume_job(*, tenant: Tenant, user: User, job_id: uuid.UUID) -> Job:
    """Ask the engine to go on with a paused job.

    Raises QuotaExceeded where the tenant has no room for one more active job, and as ``pause_job``.
    """
    return _change_control(tenant=tenant, user=user, job_id=job_id, wants_paused=False)


def cancel_job(*, tenant: Tenant, user: User, job_id: uuid.UUID) -> Job:
    """Ask the engine to cancel the job; harmless where it was asked already or the job has finished.

    The engine's ``status`` event makes it cancelled; until then the job is "cancelling". Raises NotAllowed, Http404.
    """
    return _change_control(tenant=tenant, user=user, job_id=job_id, wants_cancelled=True)


def cancel_all_jobs(*, tenant: Tenant, user: User | None) -> int:
    """Ask the engine to cancel whatever of the tenant has not ended, before the tenant is deleted; how many were asked.

    The caller has checked that ``user`` may; None is the system.
    """
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        open_jobs = Job.objects.select_for_update().filter(tenant=tenant, wants_cancelled=False)
        jobs = list(open_jobs.filter(status__in=OPEN_STATUSES).order_by("pk"))
        for job in jobs:
            job.wants_cancelled = True
            job.control_revision += 1
            job.control_sent_at = None
            job.save(update_fields=["wants_cancelled", "control_revision", "control_sent_at"])
            record_change(tenant=tenant, user=user, action="job.cancelled", target=job)
        transaction.on_commit(lambda: send_commands(job_ids=[job.pk for job in jobs]))
        transaction.on_commit(lambda: wake_readers(jobs))
    return len(jobs)


def set_priority(*, tenant: Tenant, user: User, job_id: uuid.UUID, priority: int) -> Job:
    """Among the tenant's own jobs the highest priority, -10 to 10, goes first.

    Raises InvalidInput, and as ``pause_job``.
    """
    return _change_control(tenant=tenant, user=user, job_id=job_id, wanted_priority=priority)


def extend_job(*, tenant: Tenant, user: User, job_id: uuid.UUID, steps: int) -> Job:
    """Make the job end after ``steps`` steps in all: more than before, or fewer, but not below those done.

    Raises InvalidInput, and as ``pause_job``.
    """
    return _change_control(tenant=tenant, user=user, job_id=job_id, wanted_steps=steps)


def _change_control(*, tenant: Tenant, user: User, job_id: uuid.UUID, **changes: Any) -> Job:
    """Change what the tenant wants of the job: one new revision, or none where nothing changes."""
    require_writer(tenant=tenant, user=user)
    with transaction.atomic():
        # The tenant's lock comes first, as in create_job: the quota holds against both.
        tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        job = Job.objects.select_for_update().filter(tenant=tenant, pk=job_id).first()
        if job is None:
            raise Http404("No such job.")
        if changes.get("wants_paused") and job.hold is not None:
            return _keep_paused(tenant, user, job)
        if all(getattr(job, name) == value for name, value in changes.items()):
            return job
        if "wants_cancelled" in changes and job.is_finished:
            return job
        if job.is_finished or job.wants_cancelled:
            how = f"has ended: {job.state_label.lower()}" if job.is_finished else "is being cancelled, which is final"
            raise Conflict(f"{job.name} {how}.", hint="Start a new job; it can continue from an adapter of this one.")
        if changes.get("wants_paused") is False:
            if job.gave_up_its_place:
                require_place(tenant=tenant)
            else:
                require_quota_left(tenant=tenant)
        if "wants_paused" in changes:  # from now on a person's wish
            QuotaHold.objects.filter(job=job).delete()
        if changes.get("wanted_steps", 0) > job.wanted_steps:
            require_steps(tenant=tenant, steps=changes["wanted_steps"], field="steps")
        before = {name: getattr(job, name) for name in changes}
        for name, value in changes.items():
            setattr(job, name, value)
        job.control_revision += 1
        job.control_sent_at = None
        _check_control(job, changes)
        job.save(update_fields=[*changes, "control_revision", "control_sent_at"])
        record_change(tenant=tenant, user=user, action=_action(changes), target=job, before=before, after=changes)
        transaction.on_commit(lambda: send_commands(job_ids=[job_id]))
        transaction.on_commit(lambda: wake_readers([job]))
    return job


def _keep_paused(tenant: Tenant, user: User, job: Job) -> Job:
    """A person's pause takes the place of the quota's; the engine has nothing to change."""
    before, after = {"goes_on_by_itself": True}, {"goes_on_by_itself": False}
    QuotaHold.objects.filter(job=job).delete()
    record_change(tenant=tenant, user=user, action="job.paused", target=job, before=before, after=after)
    transaction.on_commit(lambda: wake_readers([job]))
    return Job.objects.get(pk=job.pk)


def _action(changes: dict[str, Any]) -> str:
    """A change of control as the audit log names it."""
    if "wants_cancelled" in changes:
        return "job.cancelled"
    if "wants_paused" in changes:
        return "job.paused" if changes["wants_paused"] else "job.resumed"
    return "job.changed"


def _check_control(job: Job, changes: dict[str, Any]) -> None:
    data = {"priority": job.wanted_priority, "steps": job.wanted_steps}
    fields = []
    try:
        JobControl.model_validate({**data, "revision": job.control_revision})
    except ValidationError as error:
        fields = field_errors(error, data)
    if not fields and "wanted_steps" in changes and job.wanted_steps < job.step:
        fields = [FieldError("steps", f"must be at least {job.step}: so many are done")]
    if fields:
        raise InvalidInput("The job was not changed.", fields=fields)


def ingest_events(*, batch: EventBatch) -> dict[str, int]:
    """Store what is new of a batch, bring its jobs up to date, then acknowledge and wake readers.

    Repeats and batches out of order are harmless. Returns, by job id, the seq up to which the engine may forget:
    the highest one without a gap below; for a job the portal does not know, the highest in the batch.
    """
    by_job: dict[uuid.UUID, list[StoredEvent]] = defaultdict(list)
    for event in to_stored(batch):
        by_job[event.job_id].append(event)
    with transaction.atomic():
        # Ordered locks: two ingestions of the same jobs wait for each other instead of deadlocking.
        jobs = list(Job.objects.select_for_update().defer("spec").filter(pk__in=list(by_job)).order_by("pk"))
        with_gap = jobs_with_a_gap(jobs)
        new = {job: _new_events(job, by_job[job.pk]) for job in jobs}
        store_events(event for events in new.values() for event in events)
        changed = advance_jobs((job, _read_on(job) if job.pk in with_gap else events) for job, events in new.items())
        acknowledged = {job.pk.hex: job.last_seq for job in jobs if job.last_seq}
        for job_id in by_job.keys() - {job.pk for job in jobs}:
            words = "Dropped %d event(s) of job %s, which does not exist"
            logger.warning(words, len(by_job[job_id]), job_id.hex, extra={"job_id": job_id.hex})
            acknowledged[job_id.hex] = max(event.seq for event in by_job[job_id])
        transaction.on_commit(lambda: acknowledge_events(acknowledged))
        transaction.on_commit(lambda: wake_readers(changed))
        transaction.on_commit(lambda: enforce_quotas(tenant_ids={job.tenant_id for job in changed}))
    return acknowledged


def _new_events(job: Job, events: Iterable[StoredEvent]) -> list[StoredEvent]:
    """Those above ``last_seq``, in order, each once: the first of its seq, as it is stored."""
    first: dict[int, StoredEvent] = {}
    for event in events:
        if event.seq > job.last_seq:
            first.setdefault(event.seq, event)
    return [first[seq] for seq in sorted(first)]


def _read_on(job: Job) -> Iterator[StoredEvent]:
    """What is stored above ``last_seq``: where there was some before this batch, only the table knows the whole."""
    return read_stored(JobEvent.objects.filter(job=job, seq__gt=job.last_seq), at_once=CHUNK)
