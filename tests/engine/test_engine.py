"""The engine without the portal: controller, pools, rollout, environments, trainer on a local Ray; tiny model, fp32."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from engine.spec.trial import FINISHED_TRIALS, TrialReport
from tests.engine.running import PATIENCE, SHORT, Engine

pytestmark = pytest.mark.engine


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


def stored(engine: Engine, job: str) -> set[int]:
    return {int(folder.name) for folder in (engine.var / "engine" / "jobs" / job / "versions").glob("[0-9]*")}


def test_a_version_that_another_job_starts_from_is_kept_while_that_job_may_need_it(engine: Engine):
    first = engine.submit(1000, seed=1)
    engine.wait_for_step(first, 3)
    second = engine.submit(1000, seed=2, start_from={"job_id": first, "version": 2})
    engine.control(second, paused=True)
    engine.wait_for_status(second, "paused")
    engine.wait_for_step(first, 8)
    assert 2 in stored(engine, first) and not {1, 3, 4} & stored(engine, first)
    engine.control(second, paused=False)
    engine.wait_for_step(second, 1)
    for name, tensor in engine.weights(second, 0).items():
        assert torch.equal(tensor, engine.weights(first, 2)[name])
    engine.control(second, cancelled=True)
    engine.wait(second)
    engine.wait_for_step(first, len(engine.steps(first)) + 2)
    assert 2 not in stored(engine, first)
    engine.control(first, cancelled=True)
    engine.wait(first)


def test_the_best_version_is_kept_and_becomes_the_result(engine: Engine):
    """The learning rate ruins the model a little more with each step, so an early version stays the best."""
    job = engine.submit(9, seed=4, evaluation={"every_steps": 1}, training__learning_rate=1e-2)
    last = engine.submit(9, seed=4, evaluation={"every_steps": 1, "result": "last"}, training__learning_rate=1e-2)
    engine.wait(job, last)
    evaluated = [event for event in engine.of(job, "evaluation") if event["adapter_version"] is not None]
    best = max(evaluated, key=lambda event: (event["accuracy"], event["reward_mean"], event["step"]))
    assert {event["step"] for event in engine.of(job, "evaluation")} == set(range(10))
    assert best["best"] and best["adapter_version"] in stored(engine, job)
    (final,) = [event for event in engine.of(job, "adapter") if event["final"]]
    assert final["adapter_version"] == best["adapter_version"]
    said = f"Step {best['step']} did best on the held-out rows" in engine.status(job)["reason"]
    assert said == (best["step"] != 9)
    assert [event["adapter_version"] for event in engine.of(last, "adapter") if event["final"]] == [9]


def test_a_step_that_leaves_the_adapter_as_it_was_fails_the_job(engine: Engine):
    """A learning rate that is 0 in fp32: the step commits what was there before, and training would be for nothing."""
    job = engine.submit(3, training__learning_rate=1e-60)
    engine.wait(job)
    assert engine.status(job)["status"] == "failed"
    assert engine.status(job)["reason"] == "step 1 left the adapter unchanged"


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
