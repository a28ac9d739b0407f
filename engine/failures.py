"""How a job fails: errors whose message is written for the tenant or the operator."""

from __future__ import annotations

from engine.actors import LostActor
from engine.data import DatasetError
from engine.models import BaseModelError
from engine.pool import PoolError
from engine.rollout.adapter_files import AdapterError
from engine.rollout.workers import PublishError
from engine.store import StoreError
from engine.training.errors import TrainingError


class JobFailed(Exception):
    """The job cannot go on. ``reason`` and ``advice`` are for the tenant."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


REASONED = (
    JobFailed,
    AdapterError,
    BaseModelError,
    DatasetError,
    LostActor,
    PoolError,
    PublishError,
    StoreError,
    TrainingError,
)
"""Errors whose message is written for the tenant or the operator."""
