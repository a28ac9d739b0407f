"""The soak's plan and its accounts: that it would notice each kind of loss."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from itertools import count

import pytest

from portal.ops.soak_accounts import StoredVersion, account_for, read_last_seqs, read_versions, shares, stage_seconds
from portal.ops.soak_plan import CONTROLS, KILLED, REWARDS, dataset, make_plan
from portal.ops.soak_processes import MATCHES
from portal.ops.soak_report import Outcome, as_json, report


def events_of(*payloads, start=1000.0):
    seqs = count(1)
    return [
        {"seq": seq, "type": payload["type"], "time": start + seq, "payload": payload}
        for seq, payload in zip(seqs, payloads, strict=False)
    ]


def status(name, reason=""):
    return {"type": "status", "status": name, "reason": reason}


def step(number, tokens=100.0, seconds=1.0):
    return {"type": "step", "step": number, "metrics": {"tokens_trained": tokens, "accelerator_seconds": seconds}}


def adapter(version, sha256="", final=False):
    return {"type": "adapter", "adapter_version": version, "sha256": sha256 or f"sha-{version}", "final": final}


def stored(*versions):
    return [StoredVersion(version, f"sha-{version}") for version in versions]


WHOLE = [
    status("queued"), status("running"), adapter(0), step(1), adapter(1), step(2), adapter(2),
    adapter(2, final=True), status("succeeded"),
]  # fmt: skip


def faults(payloads, *, seqs=None, last_seq=None, versions=None):
    events = events_of(*payloads)
    for event, seq in zip(events, seqs or range(1, len(events) + 1), strict=True):
        event["seq"] = seq
    account = account_for(
        "a job", 0, ("succeeded",), events, last_seq or len(events), stored(0, 1, 2) if versions is None else versions
    )
    return {kind: words for kind, words in account.faults.items() if words}


def test_a_whole_job_has_no_fault():
    assert faults(WHOLE) == {}


def test_a_step_in_the_store_without_its_event_is_lost():
    assert faults(WHOLE, versions=stored(1, 2, 3)) == {"steps lost": ["step 3"]}


def test_a_step_that_is_skipped_or_not_in_the_store_is_lost():
    skipped = [payload for payload in WHOLE if payload.get("step") != 1]
    assert faults(skipped) == {"steps lost": ["step 1"]}
    assert faults(WHOLE, versions=stored(0, 1)) == {"steps lost": ["step 2 is not in the store"]}


def test_a_step_told_twice_or_made_anew_is_doubled():
    assert faults([*WHOLE[:6], step(2), *WHOLE[6:]]) == {"steps doubled": ["step 2"]}
    other = [StoredVersion(1, "sha-1"), StoredVersion(2, "other")]
    assert faults(WHOLE, versions=other) == {"steps doubled": ["version 2 is not the one that was published"]}


def test_missing_and_doubled_numbers_are_found():
    assert faults(WHOLE, last_seq=10) == {"events missing": ["event 10"]}
    assert faults(WHOLE, seqs=[1, 2, 3, 4, 5, 6, 7, 8, 8], last_seq=8) == {"events doubled": ["event 8"]}
    assert faults(WHOLE, last_seq=8) == {"events doubled": ["event 9, which the engine never wrote"]}


def test_what_is_said_twice_under_two_numbers_is_found():
    evaluation = {"type": "evaluation", "adapter_version": None}
    twice = [evaluation, evaluation, *WHOLE, adapter(2), status("succeeded")]
    assert faults(twice) == {
        "events doubled": [
            "the evaluation of version None came 2 times",
            "the publication of version 2 came 2 times",
            "the end came 2 times",
        ]
    }


def test_an_end_other_than_planned_is_a_fault():
    assert faults([*WHOLE[:-1], status("failed", "The trainer was lost.")]) == {
        "wrong end": ["failed: The trainer was lost."]
    }
    assert faults([], versions=[]) == {"wrong end": ["never taken on: "]}


def test_shares_count_only_while_every_tenant_is_busy():
    first = events_of(status("running"), step(1), step(2), status("succeeded"), step(3))  # 1001 to 1004
    second = events_of(status("running"), step(1, 50, 3), status("paused"), start=1001.5)  # 1002.5 to 1004.5
    given, seconds = shares([1.0, 2.0], [(0, first), (1, second)])
    assert [(share.tokens, share.accelerator_seconds) for share in given] == [(100.0, 1.0), (50.0, 3.0)]
    assert seconds == pytest.approx(1.5)


def test_stages_are_added_up_and_hanging_rewards_told_apart():
    def span(stage, seconds):
        return {"type": "span", "stage": stage, "start": 5.0, "end": 5.0 + seconds}

    stages = stage_seconds(
        [
            ("", events_of(span("rollout", 1), span("rollout", 5), span("environment", 1))),
            (" of a hanging reward", events_of(span("rollout", 2), span("environment", 9))),
        ]
    )
    assert stages["rollout"] == {"spans": 3, "median": 2.0, "longest": 5.0}
    assert stages["environment"]["longest"] == 1.0
    assert stages["environment of a hanging reward"]["longest"] == 9.0


def test_the_engines_files_are_read(tmp_path):
    (tmp_path / "engine").mkdir()
    with sqlite3.connect(tmp_path / "engine" / "ledger.sqlite3") as ledger:
        ledger.execute("CREATE TABLE jobs (job_id TEXT, last_seq INTEGER)")
        ledger.execute("INSERT INTO jobs VALUES ('a', 7)")
    for version in (9, 10):
        folder = tmp_path / "engine" / "jobs" / "a" / "versions" / str(version)
        folder.mkdir(parents=True)
        files = {"adapter_model.safetensors": {"sha256": f"sha-{version}"}}
        (folder / "manifest.json").write_text(json.dumps({"version": version, "files": files}))
    assert read_last_seqs(tmp_path) == {"a": 7}
    assert read_versions(tmp_path, "a") == stored(9, 10)
    assert read_versions(tmp_path, "unknown") == []


def test_a_seed_gives_one_plan():
    assert make_plan(5, 8, 32, 300) == make_plan(5, 8, 32, 300)
    assert make_plan(5, 8, 32, 300) != make_plan(6, 8, 32, 300)
    assert dataset(5) == dataset(5)


def test_a_plan_covers_everything():
    plan = make_plan(1, 8, 32, 300)
    happenings = Counter(disturbance.what for disturbance in plan.disturbances)
    assert set(happenings) == {*KILLED, *CONTROLS}
    assert {*KILLED} == {*MATCHES}
    assert {happenings[kind] for kind in KILLED} <= {1, 2}
    assert all(0 <= disturbance.at <= 300 for disturbance in plan.disturbances)
    assert {job.reward for job in plan.jobs} == {*REWARDS}
    assert Counter(job.tenant for job in plan.jobs) == dict.fromkeys(range(8), 4)
    assert len({job.settings["lora"]["rank"] for job in plan.jobs}) > 1


def outcome(payloads):
    events = events_of(*payloads)
    account = account_for("a job", 0, ("succeeded",), events, len(events), stored(0, 1, 2))
    given, seconds = shares([1.0], [(0, events)])
    return Outcome(
        seed=1, seconds=60.0, accounts=[account], events=len(events), stages={}, shares=given, busy_seconds=seconds,
        memory_at_start=2**30, memory_at_end=2**30, kills={"web": 2}, controls={}, trouble=[],
    )  # fmt: skip


def test_the_report_names_what_was_counted_and_every_fault():
    whole = outcome(WHOLE)
    assert whole.succeeded
    assert "2 committed, 0 lost, 0 doubled" in report(whole)
    assert "2 web" in report(whole)
    lossy = outcome([*WHOLE[:6], step(2), *WHOLE[6:]])
    assert not lossy.succeeded
    assert "FAULT a job: steps doubled: step 2" in report(lossy)
    assert as_json(lossy)["faults"] == {"a job": {"steps doubled": ["step 2"]}}
