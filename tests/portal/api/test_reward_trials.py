"""The API's side of testing a reward."""

from __future__ import annotations

import uuid

import pytest

from engine.spec import RewardSpec
from engine.spec.trial import TrialReport, TrialScore
from portal.base_models.services import BUNDLED_ID
from portal.rewards.models import RewardTrial
from portal.rewards.trial_services import take_in_report

SPEC = {"grader": {"type": "numeric"}}


def post(api, path, body):
    return api.post(f"/api/v1/{path}/", body, "application/json")


def test_a_reward_is_checked_without_saving_it(api):
    answer = post(api, "reward-functions/validate", {"spec": SPEC})
    assert answer.status_code == 200
    assert answer.json() == {
        "valid": True, "spec": RewardSpec.model_validate(SPEC).model_dump(mode="json"),
    }  # fmt: skip
    answer = post(api, "reward-functions/validate", {"spec": {"grader": {"type": "regex", "pattern": "("}}})
    assert answer.status_code == 400
    assert [item["field"] for item in answer.json()["error"]["fields"]] == ["grader.pattern"]


@pytest.mark.parametrize("reward", ["spec", "reward_version"])
def test_validate_only_runs_nothing(api, ours, reward):
    before = RewardTrial.objects.count()
    body = {"spec": SPEC} if reward == "spec" else {"reward_version": str(ours.reward_version.pk)}
    answer = post(api, "reward-trials", {**body, "validate_only": True})
    assert (answer.status_code, answer.json()["valid"]) == (200, True)
    assert RewardTrial.objects.count() == before


def test_from_start_to_scores(api):
    body = {"spec": SPEC, "row": {"prompt": "1+1?", "answer": 2}, "completions": ["2", " 3"]}
    answer = post(api, "reward-trials", body)
    assert answer.status_code == 202
    trial = answer.json()
    assert (trial["state"], trial["total"], trial["signal"]) == ("queued", 2, None)
    assert trial["cases"][0]["row"]["answer"] == "2"
    scores = [[TrialScore(completion="2", total=1.0), TrialScore(completion=" 3", total=0.0, reason="3 is not 2")]]
    trial_id = uuid.UUID(trial["id"]).hex
    take_in_report(report=TrialReport(trial_id=trial_id, sequence=1, state="done", done=2, scores=scores))
    trial = api.get(f"/api/v1/reward-trials/{trial['id']}/").json()
    assert trial["state"] == "done"
    assert [score["total"] for score in trial["cases"][0]["scores"]] == [1.0, 0.0]
    assert trial["signal"]["histogram"] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert [finding["code"] for finding in trial["signal"]["findings"]] == ["signal"]
    (listed, _) = api.get("/api/v1/reward-trials/").json()["results"]
    assert listed["id"] == trial["id"] and "cases" not in listed


def test_rows_of_a_dataset_with_fresh_samples(api, ours):
    body = {
        "reward_version": str(ours.reward_version.pk), "dataset_version": str(ours.dataset_version.pk), "rows": 3,
        "base_model": BUNDLED_ID, "samples": 2,
    }  # fmt: skip
    trial = post(api, "reward-trials", body).json()
    assert trial["total"] == 6
    assert all(case["line"] >= 1 for case in trial["cases"])
    cancelled = api.post(f"/api/v1/reward-trials/{trial['id']}/cancel/").json()
    assert cancelled["state"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "spec"),
        ({"spec": SPEC}, "row"),
        ({"spec": SPEC, "row": {"prompt": "x"}}, "base_model"),
        ({"spec": SPEC, "row": {"prompt": "x"}, "completions": [1, {}]}, "completions.1"),
        ({"spec": SPEC, "row": {"prompt": "x"}, "base_model": BUNDLED_ID, "seed": -1}, "seed"),
    ],
)
def test_faults_name_the_field(api, body, field):
    answer = post(api, "reward-trials", body)
    assert answer.status_code == 400
    assert field in [item["field"] for item in answer.json()["error"]["fields"]]


@pytest.mark.parametrize("name", ["reward_version", "dataset_version"])
def test_foreign_objects_cannot_be_tried(api, ours, theirs, name):
    body = {"completions": ["1"], "line": 1}
    body |= {"reward_version": str(ours.reward_version.pk), "dataset_version": str(ours.dataset_version.pk)}
    assert post(api, "reward-trials", {**body, name: str(getattr(theirs, name).pk)}).status_code == 404
