"""kill -9 of any process at any instant changes no job's result and loses or doubles nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file

from engine.events import TERMINAL_STATUSES
from portal.ops import soak_processes
from portal.ops.soak_accounts import account_for, read_last_seqs, read_versions, unacknowledged
from portal.ops.soak_plan import KILLED
from tests.integration.conftest import ROWS, SHORT, Installation, Tenant, training, until

STEPS = 60
KILLS = 6
TOGETHER = ("rollout", "trainer", "controller", "engine", "events", "redis")


@pytest.fixture(scope="module")
def undisturbed(installation: Installation, ours: Tenant) -> dict[str, torch.Tensor]:
    """The weights of a job that nothing happened to."""
    job_id = start(ours)
    assert ours.wait(job_id)["status"] == "succeeded"
    return weights(installation.var, job_id)


def start(tenant: Tenant) -> str:
    settings = training(STEPS, seed=11, evaluation={"every_steps": 5, "max_rows": 4})
    return tenant.start_job(tenant.upload(ROWS, "durable"), tenant.reward(SHORT, "durable"), **settings)


def weights(var: Path, job_id: str) -> dict[str, torch.Tensor]:
    folder = var / "engine" / "jobs" / job_id.replace("-", "") / "versions" / str(STEPS)
    return load_file(folder / "adapter_model.safetensors")


def test_a_job_whose_processes_are_killed_at_random_learns_the_same(installation, ours, undisturbed):
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    job_id = start(ours)
    until(lambda: last_step(installation, job_id) > 0, "the first step")
    for kind in rng.sample(KILLED, KILLS):
        time.sleep(rng.uniform(0, 1.5))
        step = last_step(installation, job_id)
        pid = until(lambda kind=kind: soak_processes.kill_one(kind, 0), f"finding the {kind} process")
        print(f"step {step}: killed {kind} (pid {pid})")
        until(lambda step=step: last_step(installation, job_id) > step or step == STEPS, f"a step after {kind} died")
    assert_same_and_whole(installation, ours, job_id, undisturbed)


def test_a_job_learns_the_same_when_everything_dies_at_once(installation, ours, undisturbed):
    job_id = start(ours)
    until(lambda: last_step(installation, job_id) >= 3, "the third step")
    for kind in TOGETHER:
        soak_processes.kill_one(kind, 0)
    assert_same_and_whole(installation, ours, job_id, undisturbed)


def last_step(installation: Installation, job_id: str) -> int:
    """As the store has it: the web server may be down."""
    versions = installation.var / "engine" / "jobs" / job_id.replace("-", "") / "versions"
    return max((int(folder.name) for folder in versions.glob("[0-9]*")), default=0)


def has_ended(tenant: Tenant, job_id: str) -> bool:
    try:
        response = tenant.http.get(f"jobs/{job_id}/")
    except httpx.TransportError:
        return False
    return response.is_success and response.json()["status"] in TERMINAL_STATUSES


def assert_same_and_whole(installation: Installation, tenant: Tenant, job_id: str, undisturbed) -> None:
    until(lambda: has_ended(tenant, job_id), "the end of the job")
    until(lambda: not unacknowledged(installation.var), "the delivery of every event")
    engine_id = job_id.replace("-", "")
    account = account_for(
        "job", 0, ("succeeded",), tenant.events(job_id), read_last_seqs(installation.var)[engine_id],
        read_versions(installation.var, engine_id),
    )  # fmt: skip
    assert {kind: words for kind, words in account.faults.items() if words} == {}
    assert account.committed == STEPS
    ours = weights(installation.var, job_id)
    assert ours.keys() == undisturbed.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, undisturbed[name], atol=1e-5, rtol=0)
