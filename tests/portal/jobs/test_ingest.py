"""Ingestion: whatever the order, the repeats and the batches, the same events give the same state."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.events import AdapterRemoved, EventBatch, Notice, RewardError
from portal.adapters.models import AdapterVersion
from portal.jobs.models import Job, JobEvent
from portal.jobs.projection import PROJECTED_FIELDS
from portal.jobs.selectors import list_events, read_news, summarize_job
from portal.jobs.services import ingest_events
from tests.portal.factories import (
    START,
    control,
    evaluation,
    make_batch,
    make_events,
    published,
    rollout,
    span,
    status,
    step,
)
from tests.portal.jobs.test_create import create


def story(job, final="succeeded"):
    """A whole job's events."""
    return make_events(
        job,
        status("preparing", "Loading the model."),
        evaluation(0.25),
        status("running", "Training.", "Step 1 of 2."),
        rollout(1),
        span(),
        step(1, accuracy=0.5),
        published(job, 1),
        control(1, steps=3),
        control(2, steps=2, priority=-4),
        step(2, accuracy=0.75),
        published(job, 2, final=True),
        AdapterRemoved(adapter_versions=[1]),
        evaluation(0.875, version=2),
        status(final, "All steps are done."),
    )


def state(job):
    job = Job.objects.get(pk=job.pk)
    return {
        **{name: getattr(job, name) for name in PROJECTED_FIELDS},
        "adapters": list(
            AdapterVersion.objects.filter(job=job)
            .order_by("version")
            .values_list("version", "step", "final", "removed")
        ),
        "events": list(job.events.order_by("seq").values_list("seq", "type")),
    }


def test_the_state_is_what_the_events_say(ours):
    job = create(ours)
    assert ingest_events(batch=EventBatch(events=story(job))) == {job.pk.hex: 14}
    seen = state(job)
    assert (seen["status"], seen["reason"], seen["next"]) == ("succeeded", "All steps are done.", "")
    assert (seen["steps"], seen["priority"], seen["applied_revision"]) == (2, -4, 2)
    assert (seen["step"], seen["metrics"]) == (2, {"reward_mean": 0.2, "accuracy": 0.75})
    assert (seen["base_accuracy"], seen["accuracy"]) == (0.25, 0.875)
    assert seen["started_at"].timestamp() == START + 1
    assert seen["finished_at"].timestamp() == START + 14
    assert seen["adapters"] == [(1, 1, False, True), (2, 2, True, False)]
    assert [seq for seq, _ in seen["events"]] == list(range(1, 15))


@pytest.mark.django_db
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_any_delivery_gives_the_same_state(ours, data):
    """Two jobs' events, shuffled, repeated and cut into batches, in the end every event at least once."""
    ours.tenant.max_active_jobs = 1000
    ours.tenant.save()
    expected_of, delivered = {}, []
    for final in ("succeeded", "failed"):
        reference, job = create(ours), create(ours)
        ingest_events(batch=EventBatch(events=story(reference, final)))
        expected_of[job] = state(reference)
        delivered += story(job, final)
    repeats = data.draw(st.lists(st.sampled_from(delivered), max_size=10))
    order = data.draw(st.permutations([*delivered, *repeats]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), max_size=8)))
    for begin, end in zip([0, *cuts], [*cuts, len(order)], strict=True):
        acknowledged = ingest_events(batch=EventBatch(events=order[begin:end]))
        for job_id, seq in acknowledged.items():  # never more than what is stored without a gap
            assert JobEvent.objects.filter(job_id=job_id, seq__lte=seq).count() == seq
    for job, expected in expected_of.items():
        assert state(job) == expected


def test_readers_wait_for_a_gap_to_close(ours):
    job = create(ours)
    events = story(job)
    assert ingest_events(batch=EventBatch(events=[*events[:2], events[3]])) == {job.pk.hex: 2}
    assert [event.seq for event in list_events(ours.tenant, job.pk)] == [1, 2]
    assert ingest_events(batch=EventBatch(events=[events[2]])) == {job.pk.hex: 4}
    assert [event.seq for event in list_events(ours.tenant, job.pk, after=2)] == [3, 4]


def test_events_of_unknown_jobs_are_dropped_and_acknowledged(ours, caplog):
    job = create(ours)
    stray = [event.model_copy(update={"job_id": "0" * 32}) for event in story(job)[:3]]
    assert ingest_events(batch=EventBatch(events=[*stray, *story(job)[:1]])) == {"0" * 32: 3, job.pk.hex: 1}
    assert "job 00000000000000000000000000000000, which does not exist" in caplog.text


def test_a_repeat_with_other_content_changes_nothing(ours):
    job = create(ours)
    ingest_events(batch=make_batch(job, status("running", "Training.")))
    ingest_events(batch=make_batch(job, status("failed", "Forged.")))
    assert state(job)["status"] == "running"


def test_an_empty_batch(db):
    assert ingest_events(batch=EventBatch(events=[])) == {}


def test_characters_no_database_takes_are_replaced(ours):
    job = create(ours)
    ingest_events(batch=make_batch(job, rollout(1, completion="a\x00b\ud800"), rollout(1)))
    assert [event.payload["episodes"][0]["completion"] for event in list_events(ours.tenant, job.pk)] == [
        "a\ufffdb?",
        "2",
    ]


def test_cursors_run_over_what_is_left_out(ours):
    job = create(ours)
    ingest_events(batch=make_batch(job, span(), span(), status("running", "Training."), span()))
    news = read_news(ours.tenant, job.pk, after=0, limit=10, exclude=["span"])
    assert [event["seq"] for event in news.events] == [3]
    assert news.last_seq == 4
    assert read_news(ours.tenant, job.pk, after=0, limit=1, types=["span"]).last_seq == 1
    assert read_news(ours.tenant, job.pk, after=9, limit=1).last_seq == 9


def test_a_notice_changes_no_state(ours):
    job = create(ours)
    before = summarize_job(job)
    ingest_events(batch=make_batch(job, Notice(level="warning", code="zero_variance", message="Nothing to learn.")))
    job.refresh_from_db()
    assert {**summarize_job(job), "last_seq": 0} == before


def test_an_event_that_changes_no_state_is_stored_whole(ours):
    job = create(ours)
    error = RewardError(step=1, row=3, completion="4", kind="exception", reason="ZeroDivisionError", details="line 2")
    batch = EventBatch(events=make_events(job, status("running", "Training."), error, step(1, accuracy=0.5)))
    assert ingest_events(batch=batch) == {job.pk.hex: 3}
    stored = JobEvent.objects.get(job=job, type="reward_error")
    assert stored.payload == error.model_dump()
    job.refresh_from_db()
    assert (job.status, job.step) == ("running", 1)
