"""What goes wrong at run time ends one job with a reason in plain words, and no other job notices."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.integration.conftest import ROWS, SHORT, Installation, Tenant, training, until


@pytest.fixture(scope="module")
def bystander(theirs: Tenant):
    """Another tenant's job that runs through all of this."""
    job_id = theirs.start_job(theirs.upload(ROWS), theirs.reward(SHORT), name="bystander", **training(40))
    theirs.wait_for_step(job_id, 1)
    return job_id


def test_a_prompt_longer_than_the_context_names_its_line(ours, bystander):
    rows = [*ROWS, {"prompt": "word " * 400, "answer": "x"}]
    job = ours.wait(ours.start_job(ours.upload(rows, "long"), ours.reward(SHORT), **training(2)))
    assert job["status"] == "failed"
    assert f"line {len(rows)} (" in job["reason"]
    assert "Shorten these prompts" in job["reason"]


def test_a_reward_that_never_varies_ends_the_job_and_shows_the_completions(ours, bystander):
    never = ours.reward({"type": "regex", "pattern": "no model says this ever"}, "never")
    limits = {"max_batches_without_signal": 2}
    job_id = ours.start_job(ours.upload(ROWS), never, **training(5, limits=limits))
    job = ours.wait(job_id)
    assert job["status"] == "failed"
    assert job["step"] == 0
    assert job["reason"] == (
        "The reward never varied: every completion of the last 2 batches scored 0. There is nothing to learn from."
    )
    assert "weighted mix" in job["next"]
    assert len(ours.events(job_id, "rollout")) == 4
    notices = [event["payload"] for event in ours.events(job_id, "notice")]
    assert [notice["code"] for notice in notices if notice["code"] == "batch_dropped"] == ["batch_dropped"] * 2


def test_a_grader_that_hangs_is_ended_and_scored_as_an_error(ours, bystander):
    spec = {"grader": {"type": "regex", "pattern": r"^(?:(?:[\s\S]?){60}){60}\x00$"}, "timeout_seconds": 0.3}
    reward = ours.post("reward-functions/", json={"name": "hangs", "spec": spec})["id"]
    settings = training(3, limits={"max_batches_without_signal": 1})
    settings["training"] |= {"prompts_per_step": 1, "group_size": 2}
    job_id = ours.start_job(ours.upload(ROWS), reward, **settings)
    job = ours.wait(job_id)
    assert job["status"] == "failed"
    assert "The reward failed on every completion" in job["reason"]
    assert "timed out" in job["reason"]
    (group,) = [event["payload"] for event in ours.events(job_id, "rollout")]
    assert all(episode["error"] and episode["reward"] == 0 for episode in group["episodes"])


def test_a_broken_base_model_fails_the_job_with_one_line(installation: Installation, ours, bystander, tmp_path):
    installation.add_base_model("broken", tmp_path)
    job = ours.wait(ours.start_job(ours.upload(ROWS), ours.reward(SHORT), "broken", **training(1)))
    assert job["status"] == "failed"
    assert job["reason"].startswith("Base model broken: ")
    assert "config.json" in job["reason"]
    assert "\n" not in job["reason"]


def test_a_cancelled_job_ends_at_once_and_keeps_its_adapter(ours, bystander):
    job_id = ours.start_job(ours.upload(ROWS), ours.reward(SHORT), **training(100_000))
    ours.wait_for_step(job_id, 1)
    ours.post(f"jobs/{job_id}/cancel/")
    job = ours.wait(job_id)
    assert job["status"] == "cancelled"
    assert "can be downloaded" in job["next"]
    assert job["step"] >= 1


def test_the_controllers_death_loses_and_repeats_no_step(installation: Installation, ours, bystander):
    job_id = ours.start_job(ours.upload(ROWS), ours.reward(SHORT), **training(12))
    ours.wait_for_step(job_id, 3)
    kill_actor(installation, "Controller")
    assert_every_step_once(ours, job_id, 12)


@pytest.mark.parametrize("actor", ["Trainer", "RolloutWorker", "EnvironmentWorker"])
def test_a_stages_death_loses_and_repeats_no_step(installation: Installation, ours, bystander, actor):
    job_id = ours.start_job(ours.upload(ROWS), ours.reward(SHORT), **training(8))
    ours.wait_for_step(job_id, 2)
    kill_actor(installation, actor)
    assert_every_step_once(ours, job_id, 8)


def test_the_bridges_death_is_named_and_loses_no_event(installation: Installation, ours, bystander):
    job_id = ours.start_job(ours.upload(ROWS), ours.reward(SHORT), **training(6))
    ours.wait_for_step(job_id, 1)
    kill_one(installation, lambda process: "engine.celery" in " ".join(process.cmdline()))
    assert_every_step_once(ours, job_id, 6)
    assert "engine died (signal SIGKILL)" in installation.output.read_text()


def test_the_bystander_has_not_noticed(theirs, bystander):
    assert_every_step_once(theirs, bystander, 40)


def kill_actor(installation: Installation, name: str) -> None:
    kill_one(installation, lambda process: process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{name}"))


def kill_one(installation: Installation, matches) -> None:
    """kill -9 the one descendant of the installation that matches."""

    def find() -> list[psutil.Process]:
        found = []
        for process in psutil.Process(installation.process.pid).children(recursive=True):
            try:
                if matches(process):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found

    os.kill(until(find, "finding the process to kill")[0].pid, signal.SIGKILL)


def assert_every_step_once(tenant: Tenant, job_id: str, steps: int) -> None:
    job = tenant.wait(job_id)
    assert job["status"] == "succeeded", job["reason"]
    events = tenant.events(job_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["payload"]["step"] for event in events if event["type"] == "step"] == list(range(1, steps + 1))
