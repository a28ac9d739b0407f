"""Operators, and an engine that has reported."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from engine.spec import DrainControl, EngineReport, NodeState, PoolState, TenantShare, WorkerState
from portal.base_models.services import BUNDLED_ID
from portal.engine_room.services import store_report
from portal.tenants.services import create_user


def sign_in(user: User) -> Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def looker(db: None) -> User:
    """Staff without the permission to operate the engine."""
    user = create_user(username="looker", email="looker@example.org", password="x")
    user.is_staff = True
    user.save()
    return user


@pytest.fixture
def operator_user(db: None) -> User:
    """Staff who may operate the engine."""
    user = create_user(username="operator", email="operator@example.org", password="x")
    user.is_staff = True
    user.save()
    user.user_permissions.add(Permission.objects.get(codename="operate_engine"))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def operator(operator_user: User) -> Client:
    return sign_in(operator_user)


def make_report(**changes: Any) -> EngineReport:
    """A running pool of one worker; two tenants share it 3 : 1."""
    now = time.time()
    shares = [
        TenantShare(tenant_id="a" * 32, weight=1, used=300, waiting=2),
        TenantShare(tenant_id="b" * 32, weight=3, used=100),
    ]
    pool = PoolState(
        base_model=BUNDLED_ID, state="running", wanted_rollout_workers=1, waiting_for_rollout=2, waiting_for_trainer=1,
        rollout_workers=[WorkerState(name="rollout-0", state="serving", node="n0", kv_capacity_tokens=1000)],
        kv_budget_tokens=1000, kv_granted_tokens=250, adapters=5, adapter_slots=8, rollout_shares=shares,
    )  # fmt: skip
    values: dict[str, Any] = {
        "time": now, "started": now - 60, "jobs": {"running": 2}, "unacknowledged_events": 7, "pools": [pool],
        "nodes": [NodeState(name="host", alive=True, cpus=2)], "versions": {"ray": "2.60"},
    }  # fmt: skip
    return EngineReport(**{**values, **changes})


@pytest.fixture
def reported(ours: Any) -> EngineReport:
    report = make_report()
    assert store_report(report=report)
    return report


def drained(revision: int, draining: bool = True, reason: str = "new GPUs") -> DrainControl:
    return DrainControl(revision=revision, draining=draining, reason=reason)
