"""Writes of datasets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

from django.contrib.auth.models import User

from portal.datasets.models import DatasetVersion
from portal.datasets.parsing import DatasetInvalid, LineError
from portal.tenants.models import Tenant

__all__ = ["DatasetInvalid", "LineError", "create_dataset_version"]


def create_dataset_version(
    *,
    tenant: Tenant,
    user: User,
    name: str,
    file: BinaryIO | Iterable[bytes],
    held_out_fraction: float = 0.1,
    seed: int = 0,
) -> DatasetVersion:
    raise NotImplementedError
