"""Datasets and rewards to choose from in the new-job form: a few at a time, found by name, their newest versions."""

from __future__ import annotations

import re
import uuid
from typing import Any

from django.db.models import Max, OuterRef, Q, QuerySet, Subquery

from portal.datasets.models import DatasetVersion
from portal.datasets.selectors import list_dataset_versions
from portal.rewards.models import RewardVersion
from portal.rewards.selectors import list_reward_versions
from portal.tenants.models import Tenant

SHOWN = 5
ALL = Q()
WITH_VERSION = re.compile(r"^(.*?)\s*\bv(\d{1,9})$", re.IGNORECASE)


def find_dataset_choices(tenant: Tenant, query: str = "", chosen: str = "") -> list[DatasetVersion]:
    """The chosen version, then the newest version of each dataset whose name has ``query``; last uploaded first.

    ``name v2`` finds version 2 of it. Archived datasets are not offered, but a chosen version of one is.
    """
    return _find(list_dataset_versions(tenant), "dataset", query, chosen, offered=Q(dataset__archived_at=None))


def find_reward_choices(tenant: Tenant, query: str = "", chosen: str = "") -> list[RewardVersion]:
    """As ``find_dataset_choices``, for reward functions."""
    return _find(list_reward_versions(tenant), "reward_function", query, chosen)


def _find(versions: QuerySet[Any], parent: str, query: str, chosen: str, offered: Q = ALL) -> list[Any]:
    found = [version for version in [_get(versions, chosen)] if version is not None]
    query = query.strip()
    if "\x00" in query:  # in no name: PostgreSQL does not even take the question
        return found
    if match := WITH_VERSION.match(query):
        matching = versions.filter(number=int(match[2]), **{f"{parent}__name__icontains": match[1].strip()})
    else:
        newest = (
            versions.model.objects.filter(**{parent: OuterRef(parent)})
            .order_by()
            .values(parent)
            .annotate(newest=Max("number"))
            .values("newest")
        )
        matching = versions.filter(number=Subquery(newest))
        if query:
            matching = matching.filter(**{f"{parent}__name__icontains": query})
    known = {version.pk for version in found}
    return [*found, *(version for version in matching.filter(offered)[:SHOWN] if version.pk not in known)]


def _get(versions: QuerySet[Any], chosen: str) -> Any | None:
    try:
        return versions.filter(pk=uuid.UUID(chosen)).first() if chosen else None
    except ValueError:  # no id at all
        return None
