"""Draining a running engine and taking work again, and what the engine says of itself meanwhile."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from engine import bridge
from engine.celery import app
from engine.drain import drain_reason, paused_on_request
from engine.ledger import Ledger
from engine.spec import DrainControl, EngineReport, PoolControl
from engine.spec.trial import FINISHED_TRIALS
from tests.engine.running import SHORT, Engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Engine]:
    ray.init(num_cpus=2, namespace="marlaas", include_dashboard=False, log_to_driver=False)
    yield Engine(tmp_path_factory.mktemp("engine"), tiny_model)
    ray.shutdown()


def drain(revision: int, draining: bool, reason: str = "") -> None:
    """As the portal asks for it: by the Celery command."""
    control = DrainControl(revision=revision, draining=draining, reason=reason)
    bridge.drain.apply(args=[control.model_dump(mode="json")], throw=True)


def report_of(engine: Engine) -> EngineReport:
    return ray.get(engine.controller.report.remote())


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_a_drained_engine_holds_all_and_loses_nothing(engine: Engine):
    at_work, paused, doomed = engine.submit(12, seed=1), engine.submit(500, seed=2), engine.submit(500, seed=3)
    engine.wait_for_step(at_work, 2)
    engine.control(paused, paused=True)
    engine.wait_for_status(paused, "paused")
    drain(1, True, "new GPUs are built in")
    engine.wait_for_status(at_work, "paused")
    engine.wait_for_status(doomed, "paused")
    said = engine.status(at_work)
    done = engine.steps(at_work)[-1]
    assert said["reason"] == f"The operator paused all jobs: new GPUs are built in. Step {done} of 12 is done."
    assert said["next"].startswith("It goes on by itself")
    assert engine.status(paused)["reason"].startswith("Paused on request")

    late = engine.submit(2, seed=4)
    engine.wait_for_status(late, "queued")
    assert "takes no new work now: new GPUs" in engine.status(late)["reason"]
    engine.control(paused, paused=False)  # it waits for the operator from now on
    engine.wait_for(lambda: "operator" in engine.status(paused)["reason"], "the reason's change")
    engine.control(paused, paused=True)  # and again for its tenant
    engine.wait_for(lambda: "on request" in engine.status(paused)["reason"], "the reason's change back")
    engine.control(doomed, cancelled=True)
    engine.wait(doomed)
    assert engine.status(doomed)["status"] == "cancelled"
    assert refused_trial(engine)["reason"].startswith("The engine takes no new work now: new GPUs")

    report = report_of(engine)
    assert report.drain == DrainControl(revision=1, draining=True, reason="new GPUs are built in")
    assert report.jobs == {"paused": 2, "queued": 1}
    drain(1, False)  # an old wish that came late
    assert report_of(engine).drain == report.drain

    drain(2, False)
    engine.wait(at_work, late)
    assert engine.steps(at_work) == list(range(1, 13)) and engine.steps(late) == [1, 2]
    assert engine.status(paused)["status"] == "paused"
    engine.control(paused, cancelled=True)
    engine.wait(paused)


def refused_trial(engine: Engine) -> dict[str, Any]:
    row = {"messages": [{"role": "user", "content": "?"}], "answer": "2"}
    spec = {
        "trial_id": uuid.uuid4().hex, "tenant_id": "tenant", "reward": {"grader": SHORT},
        "cases": [{"row": row, "completions": ["2"]}],
    }  # fmt: skip
    ray.get(engine.controller.try_reward.remote(spec["trial_id"], spec))
    _, reports = ray.get(engine.controller.next_trial_reports.remote(0, 10.0))
    (report,) = [report for report in reports if report.trial_id == spec["trial_id"]]
    assert report.state in FINISHED_TRIALS
    return report.model_dump()


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_what_the_engine_says_of_itself(engine: Engine):
    job = engine.submit(500, seed=6)
    engine.wait_for_step(job, 2)
    report = report_of(engine)
    (pool,) = report.pools
    assert (pool.base_model, pool.state, pool.wanted_rollout_workers) == ("tiny", "running", 1)
    assert [worker.state for worker in pool.rollout_workers] == ["serving"]
    assert pool.kv_budget_tokens == pool.rollout_workers[0].kv_capacity_tokens > 0
    assert pool.adapters >= 1 and pool.adapter_slots == 2
    (share,) = pool.trainer_shares
    assert share.tenant_id == "tenant" and share.used > 0
    assert pool.rollout_shares[0].used > 0
    assert report.jobs == {"running": 1} and report.unacknowledged_events > 0
    assert time.time() - report.time < 60 and report.started < report.time
    nodes = bridge.describe_nodes()
    assert [node.alive for node in nodes] == [True] and nodes[0].cpus == 2
    engine.control(job, cancelled=True)
    engine.wait(job)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_bridge_reports(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    sent = []

    class Once:
        """Set after the first look."""

        def is_set(self) -> bool:
            return bool(sent)

        def wait(self, seconds: float) -> None:
            assert seconds == bridge.REPORT_SECONDS

    monkeypatch.setattr(app, "send_task", lambda name, args, queue, expires: sent.append((name, args[0], queue)))
    bridge.report_engine(Once())  # type: ignore[arg-type]
    ((name, report, queue),) = sent
    assert (name, queue) == ("portal.engine_report", "events")
    parsed = EngineReport.model_validate(json.loads(json.dumps(report)))
    assert parsed.nodes[0].alive and parsed.versions["ray"] == ray.__version__


def test_the_highest_revision_is_kept_over_restarts(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    assert ledger.drain_control() is None and ledger.pool_revisions() == {}
    assert ledger.store_drain_control(DrainControl(revision=2, draining=True, reason="x"))
    assert not ledger.store_drain_control(DrainControl(revision=2, draining=False))
    assert not ledger.store_drain_control(DrainControl(revision=1, draining=False))
    ledger.store_pool_control("tiny", PoolControl(revision=4, rollout_workers=2))
    ledger.close()
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    assert drain_reason(ledger.drain_control()) == "x"
    assert ledger.pool_revisions() == {"tiny": 4}
    ledger.close()


def test_why_no_work_is_taken():
    assert drain_reason(None) == drain_reason(DrainControl(revision=1, draining=False, reason="over")) == ""
    assert drain_reason(DrainControl(revision=1, draining=True)) == "the operator is at work on it"


def test_a_pause_of_the_service_says_why_and_that_it_ends_by_itself():
    asked = paused_on_request(3, 10)
    assert (asked.reason, asked.next) == ("Paused on request after step 3 of 10.", "Resume it to go on from there.")
    held = paused_on_request(3, 10, "The quota of sampled tokens is used up: 10 of 10.")
    assert held.reason == "The quota of sampled tokens is used up: 10 of 10. Paused after step 3 of 10."
    assert "by itself" in held.next
