"""Ingestion: whatever the order, the repeats and the batches, the same events give the same state."""

from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.events import AdapterRemoved, EventBatch, Notice, RewardError
from portal.adapters.models import AdapterVersion
from portal.jobs.models import Job, JobEvent
from portal.jobs.projection import PROJECTED_FIELDS
from portal.jobs.selectors import list_events, read_news, summarize_job
from portal.jobs.services import ingest_events
from portal.progress.models import StepRecord
from portal.rollouts.models import RolloutGroup
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


def test_a_batch_costs_the_same_statements_whatever_its_jobs(ours):
    ours.tenant.max_active_jobs = 1000
    ours.tenant.save()
    jobs = [create(ours) for _ in range(12)]
    for of_batch in (jobs[:2], jobs[2:]):
        begun = [make_events(job, status("running", "Training."), step(1)) for job in of_batch]
        ingest_events(batch=EventBatch(events=[event for events in begun for event in events]))
    counts = []
    for of_batch in (jobs[:2], jobs[2:]):
        batch = EventBatch(
            events=[
                event
                for job in of_batch
                for event in make_events(
                    job, step(2, tokens_sampled=5), published(job, 2), rollout(2), span(), evaluation(0.5, 2), first=3
                )
            ]
        )
        with CaptureQueriesContext(connection) as captured:
            ingest_events(batch=batch)
        counts.append(len(captured))
    assert counts[0] == counts[1] < 25


def test_events_stored_above_a_gap_count_before_those_that_close_it(ours):
    """What is stored first is the truth, also where the batch that closes the gap repeats it with other content."""
    job = create(ours)
    ingest_events(batch=EventBatch(events=make_events(job, step(2, reward_mean=0.75), first=3)))
    closing = make_events(job, status("running", "Training."), step(1), step(2, reward_mean=0.0), rollout(3))
    assert ingest_events(batch=EventBatch(events=closing)) == {job.pk.hex: 4}
    job.refresh_from_db()
    assert (job.step, job.metrics["reward_mean"]) == (2, 0.75)
    assert list(StepRecord.objects.filter(job=job).values_list("seq", "step")) == [(2, 1), (3, 2)]
    assert RolloutGroup.objects.get(job=job).seq == 4


@pytest.mark.parametrize("events_a_batch", [1, 2, 7])
def test_a_version_published_removed_and_made_final(ours, events_a_batch):
    job = create(ours)
    events = make_events(
        job,
        status("running", "Training."),
        published(job, 1),
        published(job, 2),
        AdapterRemoved(adapter_versions=[1, 7]),
        published(job, 2, final=True),
        AdapterRemoved(adapter_versions=[3]),
        published(job, 3),
    )
    for start in range(0, len(events), events_a_batch):
        ingest_events(batch=EventBatch(events=events[start : start + events_a_batch]))
    versions = AdapterVersion.objects.filter(job=job).order_by("version")
    assert list(versions.values_list("version", "final", "removed", "created_at")) == [
        (1, False, True, moment(2)),
        (2, True, False, moment(5)),
        (3, False, False, moment(7)),
    ]


def moment(seq):
    return datetime.fromtimestamp(START + seq, tz=UTC)


def test_a_batch_that_fails_leaves_nothing_of_any_job(ours):
    """A name used twice is refused; the other job's events come again with it."""
    first, second = create(ours), create(ours)
    stolen = published(first, 1).model_copy(update={"adapter_version": 2})
    ingest_events(batch=make_batch(first, status("running", "Training."), published(first, 1)))
    batch = EventBatch(
        events=[*make_events(second, status("running", "Training.")), *make_events(first, stolen, first=3)]
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        ingest_events(batch=batch)
    assert state(second)["events"] == []
    assert [seq for seq, _ in state(first)["events"]] == [1, 2]
