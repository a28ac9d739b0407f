"""Reward trials: what is asked of the engine, what its reports change, and that every trial ends."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.http import Http404
from django.utils import timezone

from engine.spec.trial import CANCEL_TRIAL, TRY_REWARD, RewardTrialSpec, TrialReport, TrialScore
from portal.base_models.services import BUNDLED_ID
from portal.errors import InvalidInput, NotAllowed, QuotaExceeded
from portal.rewards.models import RewardTrial
from portal.rewards.signal import read_signal
from portal.rewards.tasks import reward_tried, sweep_reward_trials
from portal.rewards.trial_services import (
    GIVE_UP_AFTER,
    KEPT,
    MAX_RUNNING,
    RESEND_AFTER,
    Sampling,
    TrialRows,
    cancel_reward_trial,
    start_reward_trial,
)
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user

SPEC = {"grader": {"type": "numeric"}}
ROW = {"prompt": "2+2?", "answer": 4}


def start(ours, rows=None, sampling=None, **changes):
    rows = rows or TrialRows(row=ROW, completions=["4", "5"])
    changes = {"spec": SPEC, **changes}
    return start_reward_trial(
        tenant=ours.tenant, user=ours.user, rows=rows, sampling=sampling or Sampling(), **changes
    )  # fmt: skip


def report(trial, sequence, state="running", **more):
    reward_tried(TrialReport(trial_id=trial.pk.hex, sequence=sequence, state=state, **more).model_dump(mode="json"))
    trial.refresh_from_db()


def age(trial, **moments):
    RewardTrial.objects.filter(pk=trial.pk).update(**moments)


@pytest.fixture(autouse=True)
def no_earlier_trials(db, request):
    request.getfixturevalue("ours")
    RewardTrial.objects.all().delete()


def test_the_engine_is_asked_once_the_trial_is_stored(ours, commands, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        trial = start(ours)
    ((name, sent),) = commands
    spec = RewardTrialSpec.model_validate(sent)
    assert (name, spec.trial_id, spec.tenant_id) == (TRY_REWARD, trial.pk.hex, str(ours.tenant.pk))
    assert spec.cases[0].row.messages[0].content == "2+2?"
    assert spec.cases[0].row.answer == "4"
    assert spec.cases[0].completions == ["4", "5"]
    assert spec.reward.timeout_seconds == 5.0
    assert spec.sampling is None
    trial.refresh_from_db()
    assert (trial.state, trial.total, trial.sent_at is not None) == ("queued", 2, True)


def test_rows_of_a_dataset_are_drawn_by_the_seed(ours):
    rows = TrialRows(dataset_version=ours.dataset_version, count=4)
    sampling = Sampling(base_model_id=BUNDLED_ID, samples=3, seed=1)
    first, again = start(ours, rows, sampling), start(ours, rows, sampling)
    numbers = [case["number"] for case in first.spec["cases"]]
    assert numbers == sorted(set(numbers)) and len(numbers) == 4
    assert again.spec["cases"] == first.spec["cases"]
    for case in first.spec["cases"]:
        assert case["row"]["messages"][0]["content"] == f"{case['number']}+1?"
    assert first.total == 12


def test_more_rows_than_the_dataset_has_are_all_of_it(ours):
    rows = TrialRows(dataset_version=ours.dataset_version, count=50)
    assert len(start(ours, rows, Sampling(base_model_id=BUNDLED_ID)).spec["cases"]) == 10


def test_one_line_with_a_given_completion_needs_no_base_model(ours):
    trial = start(ours, TrialRows(dataset_version=ours.dataset_version, line=3, completions=["3"]))
    (case,) = trial.spec["cases"]
    assert (case["number"], case["row"]["answer"], trial.spec["sampling"]) == (2, "3", None)


@pytest.mark.parametrize(
    ("rows", "sampling", "field", "says"),
    [
        ({"row": {}, "completions": ["1"]}, {}, "row.prompt", "is required"),
        ({"row": {"prompt": 3}, "completions": ["1"]}, {}, "row.prompt", "must be text"),
        ({}, {"base_model_id": BUNDLED_ID}, "row", "Give either a row or a dataset version"),
        ({"row": ROW}, {}, "base_model", "is required where no completion is given"),
        ({"row": ROW}, {"base_model_id": "nobody"}, "base_model", "is not offered"),
        ({"row": ROW}, {"base_model_id": BUNDLED_ID, "samples": 9}, "samples", "at most 8"),
        ({"row": ROW}, {"base_model_id": BUNDLED_ID, "max_tokens": 5000}, "max_tokens", "at most 2048"),
        ({"row": ROW}, {"base_model_id": BUNDLED_ID, "temperature": -1}, "temperature", "at least 0"),
        ({"row": ROW, "completions": ["x"] * 9}, {}, "completions", "at most 8"),
        ({"row": ROW, "completions": ["\x00"]}, {}, "completions.0", "cannot be stored"),
        ({"dataset": True, "count": 51}, {"base_model_id": BUNDLED_ID}, "rows", "between 1 and 50"),
        ({"dataset": True, "count": 2, "completions": ["1"]}, {}, "completions", "answers one row"),
        ({"dataset": True, "line": 11, "completions": ["1"]}, {}, "line", "between 1 and 10"),
    ],
)
def test_faults_name_the_field(ours, rows, sampling, field, says):
    if rows.pop("dataset", None):
        rows["dataset_version"] = ours.dataset_version
    with pytest.raises(InvalidInput) as caught:
        start(ours, TrialRows(**rows), Sampling(**sampling))
    assert [error.field for error in caught.value.fields] == [field]
    assert says in caught.value.fields[0].message
    assert not RewardTrial.objects.exists()


def test_an_invalid_reward_names_its_field(ours):
    with pytest.raises(InvalidInput) as caught:
        start(ours, spec={"grader": {"type": "regex", "pattern": "("}})
    assert [error.field for error in caught.value.fields] == ["grader.pattern"]


def test_only_so_many_at_once(ours, theirs):
    trials = [start(ours) for _ in range(MAX_RUNNING)]
    with pytest.raises(QuotaExceeded):
        start(ours)
    start(theirs)
    report(trials[0], 1, "done", scores=[[TrialScore(completion="4", total=1.0)]])
    start(ours)


def test_viewers_only_look(ours):
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    trial = start(ours)
    rows = TrialRows(row=ROW, completions=["1"])
    with pytest.raises(NotAllowed):
        start_reward_trial(tenant=ours.tenant, user=viewer, rows=rows, sampling=Sampling(), spec=SPEC)
    with pytest.raises(NotAllowed):
        cancel_reward_trial(tenant=ours.tenant, user=viewer, trial_id=trial.pk)


def test_reports_count_in_order_and_the_last_one_stays(ours):
    trial = start(ours)
    report(trial, 20, reason="Scoring: 1 of 2 completions.", done=1)
    report(trial, 10, reason="Waits.")
    assert (trial.state, trial.reason, trial.done) == ("running", "Scoring: 1 of 2 completions.", 1)
    scores = [[TrialScore(completion="4\x00", total=1.0), TrialScore(completion="5", total=0.0)]]
    report(trial, 30, "done", done=2, scores=scores, sampled_tokens=7)
    report(trial, 40, "failed", reason="late")
    assert (trial.state, trial.done, trial.sampled_tokens) == ("done", 2, 7)
    assert [score["completion"] for score in trial.scores[0]] == ["4\ufffd", "5"]
    assert trial.finished_at is not None


def test_a_report_of_an_unknown_trial_is_ignored(ours):
    reward_tried({"trial_id": uuid.uuid4().hex, "sequence": 1, "state": "done"})


def test_cancelling_ends_it_here_at_once_and_tells_the_engine(ours, commands, django_capture_on_commit_callbacks):
    trial = start(ours)
    with django_capture_on_commit_callbacks(execute=True):
        cancelled = cancel_reward_trial(tenant=ours.tenant, user=ours.user, trial_id=trial.pk)
        cancel_reward_trial(tenant=ours.tenant, user=ours.user, trial_id=trial.pk)
    assert (cancelled.state, commands) == ("cancelled", [(CANCEL_TRIAL, trial.pk.hex)])
    report(trial, 1, "done")
    assert trial.state == "cancelled"


def test_foreign_trials_are_not_there(ours, theirs):
    with pytest.raises(Http404):
        cancel_reward_trial(tenant=ours.tenant, user=ours.user, trial_id=theirs.reward_trial.pk)


def test_the_sweep_asks_again_until_the_engine_has_answered(ours, commands):
    trial = start(ours)
    sweep_reward_trials()
    assert len(commands) == 1, "it was never sent"
    sweep_reward_trials()
    assert len(commands) == 1, "it was sent a moment ago"
    age(trial, sent_at=timezone.now() - RESEND_AFTER)
    sweep_reward_trials()
    assert len(commands) == 2
    report(trial, 1, "failed", reason="x")
    age(trial, sent_at=timezone.now() - RESEND_AFTER)
    sweep_reward_trials()
    assert len(commands) == 2


def test_a_lost_engine_ends_it_with_a_reason(ours):
    silent, heard = start(ours), start(ours)
    report(heard, 1)
    for trial in (silent, heard):
        age(trial, created_at=timezone.now() - GIVE_UP_AFTER)
    sweep_reward_trials()
    silent.refresh_from_db()
    heard.refresh_from_db()
    assert (silent.state, heard.state) == ("failed", "running")
    assert silent.reason.startswith("The engine did not answer for 3 minutes")
    age(heard, heard_at=timezone.now() - GIVE_UP_AFTER)
    sweep_reward_trials()
    heard.refresh_from_db()
    assert heard.state == "failed"


def test_it_is_forgotten_when_it_expires(ours):
    trial = start(ours)
    assert trial.expires_at - timezone.now() > KEPT - timedelta(minutes=1)
    age(trial, expires_at=timezone.now())
    sweep_reward_trials()
    assert not RewardTrial.objects.exists()


# --- the learning signal ---------------------------------------------------------------------------------------------


def scored(*groups):
    base = {"error": False, "truncated": False}
    return [
        [{**base, "total": item} if isinstance(item, int | float) else {**base, "total": 0.0, **item} for item in group]
        for group in groups
    ]


@pytest.mark.parametrize(
    ("groups", "codes"),
    [
        ([[0, 0], [0, 0]], ["all_zero"]),
        ([[1, 1], [1, 1]], ["all_one"]),
        ([[0.5, 0.5], [0.5, 0.5]], ["all_same"]),
        ([[0, 0], [1, 1]], ["no_variance"]),
        ([[0, 0], [1, 1], [0, 0], [1, 1], [0, 1]], ["little_variance"]),
        ([[0, 1], [1, 1]], ["signal"]),
        ([[0], [1]], ["one_sample"]),
        ([[1]], []),
        ([[{"error": True}, {"error": True}]], ["all_errors", "all_zero"]),
        ([[{"error": True}, 1], [0, 1]], ["errors"]),
        ([[{"truncated": True}, {"truncated": True, "total": 1}]], ["signal", "truncated"]),
    ],
)
def test_what_the_scores_say_about_learning(groups, codes):
    assert [finding.code for finding in read_signal(scored(*groups)).findings] == codes


def test_the_spread():
    signal = read_signal(scored([0, 0.09], [0.1, 1.0], [0.95, 0.95]))
    assert signal.histogram == [2, 1, 0, 0, 0, 0, 0, 0, 0, 3]
    assert (signal.count, signal.groups, signal.flat_groups, signal.low, signal.high) == (6, 3, 1, 0, 1)
    assert signal.mean == pytest.approx(3.09 / 6)
    assert read_signal([]) is None
