"""The engine without the portal: controller, pools, rollout, environments, trainer on a local Ray; tiny model, fp32."""

from __future__ import annotations

import itertools
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.controller import connect
from engine.events import TERMINAL_STATUSES
from engine.spec import JobSpec
from engine.spec.trial import FINISHED_TRIALS, TrialReport

pytestmark = pytest.mark.engine

PATIENCE = 240
SHORT = {"type": "brevity", "target": 5, "limit": 60}


class Engine:
    """A running engine and everything it has reported."""

    def __init__(self, var: Path, model: Path) -> None:
        self.var = var
        self.model = model
        os.environ["MARLAAS_PROBE_TOLERANCE"] = "0.001"
        config = EngineConfig(var=var, adapter_slots=2, kv_cache_gib=0.05, max_sequences=64, threads=1)
        self.controller = connect(config)
        self._cursor = 0
        self.events: dict[str, list[dict[str, Any]]] = {}
        self._revisions = itertools.count(1)
        rows = [
            {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": str(a + b), "split": split}
            for a in range(6)
            for b, split in enumerate(("train", "train", "held_out"))
        ]
        self.dataset = var / "rows.jsonl"
        self.dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def spec(self, steps: int, **changes: Any) -> JobSpec:
        import hashlib

        data: dict[str, Any] = {
            "job_id": uuid.uuid4().hex,
            "tenant_id": "tenant",
            "base_model": {
                "id": "tiny", "source": "local", "location": str(self.model), "context_length": 128,
                "max_lora_rank": 8, "dtype": "float32",
            },
            "dataset": {
                "path": str(self.dataset), "sha256": hashlib.sha256(self.dataset.read_bytes()).hexdigest(),
                "train_rows": 12, "held_out_rows": 6,
            },
            "reward": {"grader": SHORT},
            "sampling": {"max_tokens": 8},
            "training": {"steps": steps, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-4},
            "lora": {"rank": 4, "alpha": 8},
        }  # fmt: skip
        for path, value in changes.items():
            *sections, name = path.split("__")
            target = data
            for section in sections:
                target = target.setdefault(section, {})
            target[name] = value
        return JobSpec.model_validate(data)

    def submit(self, steps: int, **changes: Any) -> str:
        spec = self.spec(steps, **changes)
        ray.get(self.controller.submit.remote(spec.job_id, spec.model_dump(mode="json")))
        return spec.job_id

    def control(self, job_id: str, **wishes: Any) -> None:
        control = {"revision": next(self._revisions), **wishes}
        ray.get(self.controller.control.remote(job_id, control))

    def look(self) -> None:
        """Take in what was reported since."""
        self._cursor, batch = ray.get(self.controller.next_events.remote(self._cursor, 1000, 1.0))
        for event in batch.events:
            known = self.events.setdefault(event.job_id, [])
            assert event.seq == len(known) + 1
            known.append(event.payload.model_dump())

    def of(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events.get(job_id, []) if event["type"] == kind]

    def wait_for(self, condition, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen"
            self.look()

    def status(self, job_id: str) -> dict[str, Any]:
        return (self.of(job_id, "status") or [{"status": ""}])[-1]

    def wait(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.wait_for(
                lambda job_id=job_id: self.status(job_id)["status"] in TERMINAL_STATUSES, f"the end of {job_id}"
            )

    def wait_for_status(self, job_id: str, status: str) -> None:
        self.wait_for(lambda: self.status(job_id)["status"] == status, f"status {status}")

    def wait_for_step(self, job_id: str, step: int) -> None:
        self.wait_for(lambda: len(self.of(job_id, "step")) >= step, f"step {step}")

    def steps(self, job_id: str) -> list[int]:
        return [event["step"] for event in self.of(job_id, "step")]

    def weights(self, job_id: str, version: int) -> dict[str, torch.Tensor]:
        folder = self.var / "engine" / "jobs" / job_id / "versions" / str(version)
        return load_file(folder / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Engine]:
    folder = Path(f"/tmp/marlaas-test-{os.getpid()}")  # the path of a unix socket must be short
    ray.init(
        address="local", namespace="marlaas", include_dashboard=False, log_to_driver=False, num_cpus=2,
        object_store_memory=100 * 2**20, _temp_dir=str(folder),
    )  # fmt: skip
    yield Engine(tmp_path_factory.mktemp("engine"), tiny_model)
    ray.shutdown()


def test_more_jobs_than_slots_of_different_shape_are_all_served(engine: Engine):
    shapes = [(1, 1.0, False), (2, 16.0, False), (4, 8.0, True), (8, 4.0, False), (8, 8.0, True)]
    jobs = [
        engine.submit(
            3, lora={"rank": rank, "alpha": alpha, "use_rslora": rslora}, tenant_id=f"t{index % 3}", seed=index
        )
        for index, (rank, alpha, rslora) in enumerate(shapes)
    ]
    engine.wait(*jobs)
    for job in jobs:
        assert engine.status(job)["status"] == "succeeded", engine.status(job)["reason"]
        assert engine.steps(job) == [1, 2, 3]
        assert all(event["metrics"]["probe_gap"] < 1e-3 for event in engine.of(job, "step"))


def test_a_job_among_others_learns_what_it_learns_alone(engine: Engine):
    crowd = [engine.submit(6, seed=100 + index) for index in range(3)]
    among = engine.submit(4, seed=7)
    engine.wait(among, *crowd)
    alone = engine.submit(4, seed=7)
    engine.wait(alone)
    ours, theirs = engine.weights(among, 4), engine.weights(alone, 4)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=0)


def test_a_paused_job_goes_on_from_its_last_step(engine: Engine):
    job = engine.submit(6, seed=3)
    engine.wait_for_step(job, 2)
    engine.control(job, paused=True)
    engine.wait_for_status(job, "paused")
    assert "Paused on request after step" in engine.status(job)["reason"]
    assert "Resume" in engine.status(job)["next"]
    paused_at = len(engine.steps(job))
    time.sleep(2)
    engine.look()
    assert len(engine.steps(job)) == paused_at
    engine.control(job, paused=False)
    engine.wait(job)
    assert engine.steps(job) == [1, 2, 3, 4, 5, 6]
    undisturbed = engine.submit(6, seed=3)
    engine.wait(undisturbed)
    for name, tensor in engine.weights(job, 6).items():
        torch.testing.assert_close(tensor, engine.weights(undisturbed, 6)[name], atol=1e-5, rtol=0)


def test_an_older_wish_changes_nothing(engine: Engine):
    job = engine.submit(3)
    ray.get(engine.controller.control.remote(job, {"revision": 50, "priority": 3}))
    ray.get(engine.controller.control.remote(job, {"revision": 49, "cancelled": True}))
    engine.wait(job)
    assert engine.status(job)["status"] == "succeeded"
    assert [(event["revision"], event["priority"]) for event in engine.of(job, "control")] == [(50, 3)]


def test_a_running_job_is_extended(engine: Engine):
    job = engine.submit(3)
    engine.wait_for_step(job, 1)
    engine.control(job, steps=5)
    engine.wait(job)
    assert engine.steps(job) == [1, 2, 3, 4, 5]
    assert engine.of(job, "control")[-1]["steps"] == 5


def test_a_cancelled_job_keeps_its_adapter_and_one_cancelled_while_paused_ends(engine: Engine):
    running, paused = engine.submit(1000), engine.submit(1000)
    engine.wait_for_step(running, 1)
    engine.wait_for_step(paused, 1)
    engine.control(paused, paused=True)
    engine.wait_for_status(paused, "paused")
    engine.control(paused, cancelled=True)
    engine.control(running, cancelled=True)
    engine.wait(running, paused)
    assert engine.status(running)["status"] == engine.status(paused)["status"] == "cancelled"
    assert engine.of(running, "adapter")[-1]["final"]
    assert "can be downloaded" in engine.status(running)["next"]


def test_a_job_cancelled_while_paused_has_a_result(engine: Engine):
    job = engine.submit(1000)
    engine.wait_for_step(job, 2)
    engine.control(job, paused=True)
    engine.wait_for_status(job, "paused")
    engine.control(job, cancelled=True)
    engine.wait(job)
    assert engine.of(job, "adapter")[-1]["final"]
    assert f"The adapter of step {engine.steps(job)[-1]} is kept" in engine.status(job)["next"]


def test_a_step_that_is_being_made_when_its_job_is_cancelled_is_reported(engine: Engine):
    jobs = [engine.submit(1000, training__max_staleness=2, seed=seed) for seed in range(6)]
    for number, job in enumerate(jobs):
        engine.wait_for_step(job, number + 1)
        engine.control(job, cancelled=True)
    engine.wait(*jobs)
    for job in jobs:
        versions = engine.var / "engine" / "jobs" / job / "versions"
        assert max(int(folder.name) for folder in versions.iterdir()) == engine.steps(job)[-1]


def test_a_pause_taken_back_at_once_leaves_the_job_running(engine: Engine):
    job = engine.submit(8)
    engine.wait_for_step(job, 1)
    for _ in range(3):
        first, second = next(engine._revisions), next(engine._revisions)
        ray.get(
            [
                engine.controller.control.remote(job, {"revision": first, "paused": True}),
                engine.controller.control.remote(job, {"revision": second}),
            ]
        )
    engine.wait(job)
    assert engine.status(job)["status"] == "succeeded"
    assert engine.steps(job) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_tokens_sampled": 1}, "The limit of 1 sampled tokens is reached; stopped after step 1 of 50."),
        ({"max_tokens_trained": 1}, "The limit of 1 trained tokens is reached; stopped after step 1 of 50."),
        (
            {"max_accelerator_seconds": 0.001},
            "The limit of 0.001 accelerator-seconds is reached; stopped after step 1 of 50.",
        ),
    ],
)
def test_a_limit_stops_the_job_with_its_reason_and_keeps_the_adapter(engine: Engine, limit, words):
    job = engine.submit(50, limits=limit)
    engine.wait(job)
    assert engine.status(job)["reason"] == words
    assert engine.of(job, "adapter")[-1]["final"]


def test_staleness_is_bounded_and_each_episode_names_its_version(engine: Engine):
    job = engine.submit(6, training__max_staleness=2)
    engine.wait(job)
    staleness = {event["step"]: event["metrics"]["staleness_mean"] for event in engine.of(job, "step")}
    assert list(staleness) == [1, 2, 3, 4, 5, 6]
    assert all(0 <= value <= 2 for value in staleness.values())
    assert max(staleness.values()) > 0
    for group in engine.of(job, "rollout"):
        expected = group["step"] - 1 - staleness[group["step"]]
        assert {episode["adapter_version"] for episode in group["episodes"]} == {expected}
    importance = [event["metrics"]["importance_mean"] for event in engine.of(job, "step")]
    assert all(value == pytest.approx(1, abs=0.1) for value in importance)


def test_without_staleness_every_batch_is_on_policy(engine: Engine):
    job = engine.submit(3)
    engine.wait(job)
    assert [event["metrics"]["staleness_mean"] for event in engine.of(job, "step")] == [0, 0, 0]


def test_a_job_starts_from_an_earlier_adapter(engine: Engine):
    first = engine.submit(2, seed=1)
    engine.wait(first)
    second = engine.submit(1, seed=2, start_from={"job_id": first, "version": 2})
    engine.wait(second)
    assert engine.status(second)["status"] == "succeeded", engine.status(second)["reason"]
    for name, tensor in engine.weights(second, 0).items():
        assert torch.equal(tensor, engine.weights(first, 2)[name])


def test_starting_from_what_does_not_fit_or_is_gone_says_so(engine: Engine):
    first = engine.submit(1)
    engine.wait(first)
    other = engine.submit(1, lora={"rank": 2, "alpha": 8}, start_from={"job_id": first, "version": 1})
    gone = engine.submit(1, start_from={"job_id": first, "version": 9})
    engine.wait(other, gone)
    assert "has rank 4, alpha 8 and rsLoRA False" in engine.status(other)["reason"]
    assert "not in the store any more" in engine.status(gone)["reason"]


# --- reward trials ---------------------------------------------------------------------------------------------------


def try_reward(engine: Engine, **changes: Any) -> TrialReport:
    """The last report of a reward trial."""
    row = {"messages": [{"role": "user", "content": "What is 1 + 1?"}], "answer": "2"}
    spec = {
        "trial_id": uuid.uuid4().hex, "tenant_id": "tenant", "reward": {"grader": SHORT},
        "cases": [{"row": row, "number": 0, "completions": ["2", "x" * 60]}], **changes,
    }  # fmt: skip
    ray.get(engine.controller.try_reward.remote(spec["trial_id"], spec))
    after, deadline = 0, time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        after, reports = ray.get(engine.controller.next_trial_reports.remote(after, 10.0))
        for report in reports:
            if report.trial_id == spec["trial_id"] and report.state in FINISHED_TRIALS:
                return report
    raise AssertionError("the trial did not end")


def test_a_reward_is_tried_on_given_completions(engine: Engine):
    report = try_reward(engine)
    assert report.state == "done", report.reason
    assert [score.total for score in report.scores[0]] == [1.0, 0.0]


def test_a_reward_is_tried_on_fresh_samples_that_the_seed_repeats(engine: Engine):
    model = engine.spec(1).base_model.model_dump(mode="json")
    row = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "answer": "5"}
    fresh = {
        "cases": [{"row": row, "number": n} for n in range(3)],
        "sampling": {"base_model": model, "samples": 4, "max_tokens": 8, "seed": 7},
    }
    first, again = try_reward(engine, **fresh), try_reward(engine, **fresh)
    assert first.state == "done", first.reason
    assert [len(group) for group in first.scores] == [4, 4, 4]
    completions = [score.completion for group in first.scores for score in group]
    assert len(set(completions)) > 1
    assert completions == [score.completion for group in again.scores for score in group]
    assert 12 <= first.sampled_tokens <= 12 * 8
    assert first.accelerator_seconds > 0
