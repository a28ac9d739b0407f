"""What the export of a tenant holds, cut into parts that are each quick to write.

A part is ``[kind, argument, ...]``. The plan is made once, when the export begins: what comes later is not in it.
"""

from __future__ import annotations

import json
import uuid
import zipfile
from collections.abc import Iterable
from typing import Any

from django.utils import timezone
from django.utils.text import slugify

from portal.adapters.models import AdapterVersion
from portal.audit.models import AuditEntry
from portal.audit.selectors import render_entry
from portal.datasets.models import DatasetVersion
from portal.environments.models import DocumentSet
from portal.jobs.models import Job, JobEvent
from portal.jobs.selectors import render_event, summarize_job
from portal.rewards.models import RewardFunction
from portal.tenants.models import Tenant

ROWS = 2_000
"""Of one part: jobs, those whose adapter versions it holds, or entries of the audit log."""
EVENTS = 5_000
STORED_BYTES = 64 * 1024 * 1024
"""Larger files are not compressed: a part has to be written well within the time limit of a Celery task."""

README = """Export of the tenant {name}, made {time} UTC.

tenant.json       the tenant, its members, invitations and API tokens (without their secrets)
datasets/         every version as JSON lines, as it is trained on
environments.json documents and the names of tokens; documents/: the documents
rewards.json      every reward function with its versions
jobs/<id>/        job.json: settings, state, last metrics; events-*.jsonl: all its events in order
adapters-*.jsonl  adapter versions with sha256; their files are downloaded one by one, from the portal
usage.jsonl       what each job spent on each day
webhooks.json     webhook endpoints, without their secrets
audit-*.jsonl     the audit log, oldest first
"""


def plan_parts(tenant: Tenant) -> list[list[Any]]:
    """The parts in the order they are written."""
    parts: list[list[Any]] = [["about"], ["rewards"], ["environments"], ["usage"], ["webhooks"]]
    parts += [["documents", str(pk)] for pk in tenant.document_sets.values_list("pk", flat=True)]
    versions = DatasetVersion.objects.filter(dataset__tenant=tenant).order_by("dataset__name", "number")
    parts += [["dataset", str(pk)] for pk in versions.values_list("pk", flat=True)]
    jobs = list(Job.objects.filter(tenant=tenant).order_by("created_at").values_list("pk", "last_seq"))
    for number, some in enumerate(_chunks(jobs, ROWS), start=1):
        ids = [str(pk) for pk, _ in some]
        parts += [["jobs", ids], ["adapters", number, ids]]
    for pk, last_seq in jobs:
        parts += [["events", str(pk), first, min(first + EVENTS, last_seq)] for first in range(0, last_seq, EVENTS)]
    entries = list(AuditEntry.objects.filter(tenant_id=tenant.pk).order_by("pk").values_list("pk", flat=True))
    parts += [["audit", number, some[0], some[-1]] for number, some in enumerate(_chunks(entries, ROWS), start=1)]
    return parts


def write_part(archive: zipfile.ZipFile, tenant: Tenant, part: list[Any]) -> None:
    """Add one part of the plan to the archive."""
    match part:
        case ["about"]:
            archive.writestr("README.txt", README.format(name=tenant.name, time=f"{timezone.now():%d %b %Y %H:%M}"))
            _write_json(archive, "tenant.json", _about(tenant))
        case ["rewards"]:
            _write_json(archive, "rewards.json", [_reward(each) for each in tenant.reward_functions.all()])
        case ["adapters", number, ids]:
            adapters = AdapterVersion.objects.filter(tenant=tenant, job__in=ids).order_by("job_id", "version")
            fields = ["id", "name", "job_id", "version", "step", "rank", "sha256", "size_bytes", "final", "removed"]
            _write_lines(archive, f"adapters-{number:04}.jsonl", adapters.values(*fields, "created_at").iterator())
        case ["environments"]:
            documents = list(tenant.document_sets.values("id", "name", "sha256", "documents", "created_at"))
            tokens = list(tenant.environment_tokens.values("id", "name", "created_at", "changed_at"))
            _write_json(archive, "environments.json", {"documents": documents, "tokens": tokens})
        case ["documents", document_set_id]:
            documents_of = DocumentSet.objects.get(pk=document_set_id)
            archive.write(documents_of.path, f"documents/{documents_of.sha256}.jsonl", zipfile.ZIP_DEFLATED, 1)
        case ["usage"]:
            names = ["day", "job_id", "job_name", "member_name", "steps", "evaluations"]
            amounts = ["tokens_sampled", "tokens_trained", "accelerator_seconds"]
            _write_lines(archive, "usage.jsonl", tenant.usage_records.values(*names, *amounts).iterator())
        case ["webhooks"]:
            about = ["id", "url", "description", "events", "enabled", "created_at"]
            _write_json(archive, "webhooks.json", list(tenant.webhook_endpoints.values(*about)))
        case ["dataset", version_id]:
            _write_dataset(archive, DatasetVersion.objects.select_related("dataset").get(pk=version_id))
        case ["jobs", ids]:
            for job in Job.objects.filter(pk__in=ids).select_related("base_model", "created_by"):
                _write_json(archive, f"jobs/{job.pk}/job.json", {**summarize_job(job), "spec": job.spec})
        case ["events", job_id, after, until]:
            events = JobEvent.objects.filter(job_id=uuid.UUID(job_id), seq__gt=after, seq__lte=until).order_by("seq")
            _write_lines(archive, f"jobs/{job_id}/events-{after + 1:08}.jsonl", map(render_event, events.iterator()))
        case ["audit", number, first, last]:
            entries = AuditEntry.objects.filter(tenant_id=tenant.pk, pk__gte=first, pk__lte=last).order_by("pk")
            _write_lines(archive, f"audit-{number:04}.jsonl", map(render_entry, entries.iterator()))
        case _:
            raise ValueError(f"No such part of an export: {part}")


def _about(tenant: Tenant) -> dict[str, Any]:
    return {
        "id": tenant.pk,
        "name": tenant.name,
        "slug": tenant.slug,
        "created_at": tenant.created_at,
        "require_mfa": tenant.require_mfa,
        "members": list(tenant.memberships.values("user__username", "user__email", "role", "created_at")),
        "invitations": list(tenant.invitations.values("email", "role", "created_at", "accepted_at", "revoked_at")),
        "api_tokens": list(
            tenant.api_tokens.values("name", "prefix", "user__username", "scopes", "created_at", "revoked_at")
        ),
    }


def _reward(function: RewardFunction) -> dict[str, Any]:
    versions = function.versions.order_by("number").values("id", "number", "spec", "created_at")
    return {"id": function.pk, "name": function.name, "versions": list(versions)}


def _write_dataset(archive: zipfile.ZipFile, version: DatasetVersion) -> None:
    folder = f"datasets/{slugify(version.dataset.name) or 'dataset'}-{version.dataset_id.hex[:8]}"
    facts = {"name": version.dataset.name, "version": version.number, "sha256": version.sha256, "rows": version.rows}
    _write_json(archive, f"{folder}/v{version.number}.json", facts)
    large = version.size_bytes > STORED_BYTES
    archive.write(
        version.path, f"{folder}/v{version.number}.jsonl", zipfile.ZIP_STORED if large else zipfile.ZIP_DEFLATED, 1
    )


def _write_json(archive: zipfile.ZipFile, name: str, value: Any) -> None:
    archive.writestr(name, json.dumps(value, default=str, ensure_ascii=False, indent=1))


def _write_lines(archive: zipfile.ZipFile, name: str, rows: Iterable[Any]) -> None:
    with archive.open(name, "w") as file:
        for row in rows:
            file.write((json.dumps(row, default=str, ensure_ascii=False) + "\n").encode())


def _chunks(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
