"""Reads of reward functions; every function takes the tenant first and sees nothing else's."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Max, QuerySet
from django.http import Http404

from portal.rewards.models import RewardFunction, RewardTrial, RewardVersion
from portal.tenants.models import Tenant


def list_reward_functions(tenant: Tenant) -> QuerySet[RewardFunction]:
    """With ``version_count`` and ``latest_at``; last changed first."""
    return (
        RewardFunction.objects.filter(tenant=tenant)
        .annotate(version_count=Count("versions"), latest_at=Max("versions__created_at"))
        .prefetch_related("versions")
        .order_by("-latest_at")
    )


def get_reward_function(tenant: Tenant, reward_function_id: uuid.UUID) -> RewardFunction:
    """Raises Http404 where the tenant has no such reward function."""
    reward_function = list_reward_functions(tenant).filter(pk=reward_function_id).first()
    if reward_function is None:
        raise Http404("No such reward function.")
    return reward_function


def list_reward_versions(tenant: Tenant, reward_function_id: uuid.UUID | None = None) -> QuerySet[RewardVersion]:
    """Newest first; of one reward function, or of all of the tenant's."""
    versions = (
        RewardVersion.objects.filter(reward_function__tenant=tenant)
        .select_related("reward_function")
        .order_by("-created_at")
    )
    return versions.filter(reward_function_id=reward_function_id) if reward_function_id else versions


def get_reward_version(tenant: Tenant, version_id: uuid.UUID) -> RewardVersion:
    """Raises Http404 where the tenant has no such version."""
    version = list_reward_versions(tenant).filter(pk=version_id).first()
    if version is None:
        raise Http404("No such reward version.")
    return version


def list_reward_trials(tenant: Tenant) -> QuerySet[RewardTrial]:
    """Newest first."""
    trials = RewardTrial.objects.filter(tenant=tenant).select_related("reward_version__reward_function")
    return trials.order_by("-created_at")


def get_reward_trial(tenant: Tenant, trial_id: uuid.UUID) -> RewardTrial:
    """Raises Http404 where the tenant has no such trial."""
    trial = list_reward_trials(tenant).filter(pk=trial_id).first()
    if trial is None:
        raise Http404("No such reward test.")
    return trial


@dataclass(frozen=True)
class Case:
    """One row of a trial and what its completions scored."""

    line: int | None
    """Of the dataset, counted from 1."""
    row: dict[str, Any]
    scores: list[dict[str, Any]]
    """``engine.spec.trial.TrialScore``; none until the trial is done."""


def trial_cases(trial: RewardTrial) -> list[Case]:
    """The rows of a trial in order."""
    scores = trial.scores or [[]] * len(trial.spec["cases"])
    return [
        Case(None if case["number"] is None else case["number"] + 1, case["row"], group)
        for case, group in zip(trial.spec["cases"], scores, strict=True)
    ]
