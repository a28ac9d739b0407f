"""The sample project: a small dataset, a reward and a job on them, made with one click.

Invariant: made again it makes no second dataset or reward, only another job.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from django.contrib.auth.models import User

from portal.base_models.selectors import list_base_models
from portal.datasets.models import DatasetVersion
from portal.datasets.selectors import list_dataset_versions
from portal.datasets.services import create_dataset_version
from portal.errors import Conflict
from portal.jobs.models import Job
from portal.jobs.prefill import next_name
from portal.jobs.selectors import list_jobs
from portal.jobs.services import create_job
from portal.ops.demo_tasks import sums
from portal.rewards.models import RewardVersion
from portal.rewards.selectors import list_reward_versions
from portal.rewards.services import create_reward_version
from portal.tenants.models import Tenant
from portal.tenants.services import require_writer

DATASET = "Sample: sums"
REWARD = "Sample: the right number"
JOB = "Sample: learn to add"


@dataclass(frozen=True)
class SampleProject:
    """What was made."""

    dataset_version: DatasetVersion
    reward_version: RewardVersion
    job: Job


def create_sample_project(*, tenant: Tenant, user: User) -> SampleProject:
    """Sums of two small numbers, scored by the number at the end of the answer, learnt in a few steps.

    Raises QuotaExceeded, Conflict (no base model is on offer, or the sample dataset was archived), NotAllowed, Http404.
    """
    require_writer(tenant=tenant, user=user)
    base_model = list_base_models().first()
    if base_model is None:
        raise Conflict("No base model is on offer.", hint="Ask the operator to offer one.")
    sample = sums(seed=0)
    dataset_version = list_dataset_versions(tenant).filter(
        dataset__name=DATASET, dataset__archived_at=None
    ).first() or create_dataset_version(tenant=tenant, user=user, name=DATASET, file=io.BytesIO(sample.jsonl()))
    reward_version = list_reward_versions(tenant).filter(reward_function__name=REWARD).first() or create_reward_version(
        tenant=tenant, user=user, name=REWARD, spec=sample.reward_spec
    )
    taken = list_jobs(tenant).filter(name=JOB).exists()
    job = create_job(
        tenant=tenant,
        user=user,
        name=next_name(tenant, JOB) if taken else JOB,
        base_model_id=base_model.pk,
        dataset_version=dataset_version,
        reward_version=reward_version,
        settings=sample.settings,
    )
    return SampleProject(dataset_version, reward_version, job)
