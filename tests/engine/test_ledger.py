"""The ledger: events numbered without gaps, kept until acknowledged, in one transaction with the state they report."""

import sqlite3

import pytest

from engine.events import Event, EventBatch, Notice, StatusChanged, join_events
from engine.ledger import Ledger
from engine.progress import Progress
from engine.spec import JobSpec, PoolControl

JOB, OTHER = "0" * 31 + "1", "0" * 31 + "2"


def make_spec(job_id: str = JOB) -> JobSpec:
    return JobSpec(
        job_id=job_id,
        tenant_id="t",
        base_model={"id": "tiny", "location": "x", "context_length": 64},
        dataset={"path": "/d", "sha256": "0" * 64, "train_rows": 1, "held_out_rows": 0},
        reward={"grader": {"type": "exact_match"}},
        sampling={"max_tokens": 8},
    )


def queued() -> StatusChanged:
    return StatusChanged(status="queued", reason="accepted")


def notice(code: str) -> Notice:
    return Notice(level="info", code=code, message=code)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engine" / "ledger.sqlite3"


@pytest.fixture
def ledger(path):
    ledger = Ledger(path)
    for job_id in (JOB, OTHER):
        ledger.add_job(job_id, make_spec(job_id).model_dump(mode="json"), queued())
    return ledger


def sequences(ledger: Ledger, job_id: str = JOB) -> list[int]:
    _, events = ledger.pending(0, 1000)
    batch = EventBatch.model_validate_json(join_events(events))
    return [event.seq for event in batch.events if event.job_id == job_id]


def test_events_of_each_job_are_numbered_from_one_without_gaps(ledger):
    ledger.report(JOB, notice("a"), notice("b"))
    ledger.report(OTHER, notice("c"))
    ledger.report(JOB, notice("d"))
    assert sequences(ledger) == [1, 2, 3, 4]
    assert sequences(ledger, OTHER) == [1, 2]


def test_numbers_go_on_after_acknowledgement_and_reopening(ledger, path):
    ledger.report(JOB, notice("a"))
    ledger.acknowledge({JOB: 2})
    ledger.close()
    reopened = Ledger(path)
    reopened.report(JOB, notice("b"))
    assert sequences(reopened) == [3]


def test_only_what_is_acknowledged_is_forgotten(ledger):
    ledger.report(JOB, notice("a"), notice("b"))
    ledger.acknowledge({JOB: 2})
    assert sequences(ledger) == [3]
    assert sequences(ledger, OTHER) == [1]


def test_a_reader_pages_through_pending_events(ledger):
    ledger.report(JOB, *(notice(str(index)) for index in range(5)))
    seen, cursor = [], 0
    while True:
        cursor, events = ledger.pending(cursor, 2)
        if not events:
            break
        seen += [(event.job_id, event.seq) for event in map(Event.model_validate_json, events)]
    assert seen == [(JOB, 1), (OTHER, 1), *((JOB, seq) for seq in range(2, 7))]


def test_a_known_job_is_not_added_again(ledger):
    assert not ledger.add_job(JOB, make_spec().model_dump(mode="json"), queued())
    assert sequences(ledger) == [1]


def test_unfinished_jobs_are_found_with_their_progress_after_reopening(ledger, path):
    ledger.report(JOB, progress=Progress(step=3, published=3, evaluated=["base"], ran_seconds=5.0))
    ledger.report(OTHER, StatusChanged(status="failed", reason="no"))
    ledger.close()
    (record,) = Ledger(path).unfinished_jobs()
    assert record.spec == make_spec()
    assert record.progress == Progress(step=3, published=3, evaluated=["base"], ran_seconds=5.0)


def test_events_and_progress_are_stored_together_or_not_at_all(ledger):
    class Unstorable:
        """Progress that cannot be written as JSON."""

        def __init__(self):
            self.step = object()

    with pytest.raises(TypeError):
        ledger.report(JOB, notice("a"), progress=Unstorable())
    assert sequences(ledger) == [1]
    ledger.report(JOB, notice("b"))
    assert sequences(ledger) == [1, 2]


def test_lora_ids_never_recur(ledger, path):
    first = [ledger.next_lora_id() for _ in range(3)]
    ledger.close()
    assert first == [1, 2, 3]
    assert Ledger(path).next_lora_id() == 4


def test_a_commit_survives_the_process(ledger, path):
    ledger.report(JOB, notice("a"))
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM outbox WHERE job_id = ?", (JOB,)).fetchone() == (2,)


def test_the_latest_wish_for_a_pool_is_remembered(ledger, path):
    assert ledger.pool_control("tiny") is None
    assert ledger.store_pool_control("tiny", PoolControl(revision=2, rollout_workers=3))
    assert not ledger.store_pool_control("tiny", PoolControl(revision=2, rollout_workers=5))
    assert not ledger.store_pool_control("tiny", PoolControl(revision=1, rollout_workers=5))
    assert Ledger(path).pool_control("tiny").rollout_workers == 3
    assert ledger.store_pool_control("tiny", PoolControl(revision=3, rollout_workers=1))
    assert (ledger.pool_control("tiny").revision, ledger.pool_control("other")) == (3, None)


def test_a_batch_is_joined_from_what_is_stored(ledger):
    ledger.report(JOB, notice('ä "quoted" \\ \n\u2028'))
    _, events = ledger.pending(0, 1000)
    batch = EventBatch.model_validate_json(join_events(events))
    assert batch.events == [Event.model_validate_json(event) for event in events]
    assert batch.events[-1].payload == notice('ä "quoted" \\ \n\u2028')
    assert EventBatch.model_validate_json(join_events([])).events == []
