"""Reads of what environments need; every function takes the tenant first and sees nothing else's."""

from __future__ import annotations

import uuid

from django.db.models import QuerySet
from django.http import Http404

from engine.spec import Environment, HttpEnvironment, Tools
from portal.environments.models import DocumentSet, EnvironmentToken
from portal.errors import FieldError
from portal.jobs.models import OPEN_STATUSES, Job
from portal.tenants.models import Tenant


def list_document_sets(tenant: Tenant) -> QuerySet[DocumentSet]:
    """Newest first."""
    return DocumentSet.objects.filter(tenant=tenant)


def get_document_set(tenant: Tenant, document_set_id: uuid.UUID) -> DocumentSet:
    """Raises Http404 where the tenant has no such documents."""
    found = list_document_sets(tenant).filter(pk=document_set_id).first()
    if found is None:
        raise Http404("No such documents.")
    return found


def find_document_set(tenant: Tenant, sha256: str) -> DocumentSet | None:
    """The tenant's documents of this digest whose file is there."""
    found = list_document_sets(tenant).filter(sha256=sha256).first()
    return found if found is not None and found.path.is_file() else None


def list_environment_tokens(tenant: Tenant) -> QuerySet[EnvironmentToken]:
    """By name."""
    return EnvironmentToken.objects.filter(tenant=tenant)


def get_environment_token(tenant: Tenant, environment_token_id: uuid.UUID) -> EnvironmentToken:
    """Raises Http404 where the tenant has no such token."""
    found = list_environment_tokens(tenant).filter(pk=environment_token_id).first()
    if found is None:
        raise Http404("No such environment token.")
    return found


def find_environment_token(tenant: Tenant, name: str) -> EnvironmentToken | None:
    """The tenant's token of this name whose file is there."""
    found = list_environment_tokens(tenant).filter(name=name).first()
    return found if found is not None and found.path.is_file() else None


def list_jobs_using(tenant: Tenant, *, documents_sha256: str = "", token_name: str = "") -> QuerySet[Job]:
    """Jobs that have not ended and whose environment names these documents or this token."""
    jobs = Job.objects.filter(tenant=tenant, status__in=OPEN_STATUSES)
    if documents_sha256:
        return jobs.filter(spec__environment__documents_sha256=documents_sha256)
    return jobs.filter(spec__environment__token_name=token_name)


def environment_faults(tenant: Tenant, environment: Environment) -> list[FieldError]:
    """What a job's environment names and the tenant does not have."""
    if (
        isinstance(environment, Tools)
        and environment.documents_sha256
        and find_document_set(tenant, environment.documents_sha256) is None
    ):
        message = "There are no such documents. Upload them under Environments, or choose others."
        return [FieldError("environment.documents_sha256", message)]
    if (
        isinstance(environment, HttpEnvironment)
        and environment.token_name
        and find_environment_token(tenant, environment.token_name) is None
    ):
        message = f"There is no token {environment.token_name!r}. Store it under Environments first."
        return [FieldError("environment.token_name", message)]
    return []
