"""What a tenant wants of a job: one revision a change, the whole of it sent until the engine goes by it."""

import threading

import pytest
from django.db import connection
from django.http import Http404

from engine.spec import CONTROL_JOB, JobControl
from portal.base_models.services import ensure_bundled_base_model
from portal.errors import Conflict, InvalidInput, NotAllowed, QuotaExceeded
from portal.jobs.models import Job
from portal.jobs.outbox import send_commands
from portal.jobs.selectors import count_active_jobs, summarize_job
from portal.jobs.services import cancel_job, extend_job, ingest_events, pause_job, resume_job, set_priority
from portal.jobs.tasks import engine_ready
from portal.tenants.models import Role, Tenant
from portal.tenants.services import add_member, create_user
from tests.portal.factories import build_owned, control, make_batch, status, step
from tests.portal.jobs.test_create import create

CHANGES = [
    (pause_job, {}),
    (resume_job, {}),
    (set_priority, {"priority": 3}),
    (extend_job, {"steps": 9}),
    (cancel_job, {}),
]


def change(owned, service, **wanted):
    return service(tenant=owned.tenant, user=owned.user, job_id=owned.job.pk, **wanted)


def report(owned, *payloads):
    """Events of the job, after those it has."""
    owned.job.refresh_from_db()
    ingest_events(batch=make_batch(owned.job, *payloads, first=owned.job.last_seq + 1))
    owned.job.refresh_from_db()


def pause(owned):
    change(owned, pause_job)
    report(owned, control(owned.job.control_revision + 1), status("paused", "Paused on request.", "Resume it."))


@pytest.fixture
def sent(commands, django_capture_on_commit_callbacks):
    """Runs a service and returns the commands it sent."""

    def run(owned, service, **wanted):
        commands.clear()
        with django_capture_on_commit_callbacks(execute=True):
            change(owned, service, **wanted)
        return list(commands)

    return run


def test_each_change_is_sent_as_the_whole_of_what_is_wanted(ours, sent):
    job_id = ours.job.pk.hex

    def whole(revision, **wanted):
        return [(CONTROL_JOB, job_id, JobControl(revision=revision, **wanted).model_dump(mode="json"))]

    assert sent(ours, set_priority, priority=5) == whole(1, priority=5, steps=2)
    assert sent(ours, extend_job, steps=30) == whole(2, priority=5, steps=30)
    assert sent(ours, pause_job) == whole(3, priority=5, steps=30, paused=True)
    assert sent(ours, resume_job) == whole(4, priority=5, steps=30)
    assert sent(ours, cancel_job) == whole(5, priority=5, steps=30, cancelled=True)


def test_what_changes_nothing_is_no_revision_and_sends_nothing(ours, sent):
    assert sent(ours, resume_job) == sent(ours, set_priority, priority=0) == sent(ours, extend_job, steps=2) == []
    for service, wanted in CHANGES:
        sent(ours, service, **wanted)
        ours.job.refresh_from_db()
        revision = ours.job.control_revision
        assert sent(ours, service, **wanted) == []
        ours.job.refresh_from_db()
        assert ours.job.control_revision == revision
    assert revision == 5


def test_a_control_is_sent_until_an_event_shows_its_revision(ours, commands):
    change(ours, set_priority, priority=1)
    change(ours, set_priority, priority=2)
    assert send_commands() == 1
    assert send_commands() == 0
    commands.clear()
    report(ours, control(1, priority=1))
    engine_ready()
    assert [(name, args[-1]["revision"]) for name, *args in commands] == [(CONTROL_JOB, 2)]
    commands.clear()
    report(ours, control(2, priority=2))
    engine_ready()
    assert commands == []
    assert (ours.job.priority, ours.job.is_control_pending) == (2, False)


def test_nothing_is_sent_to_a_job_that_has_ended(ours, commands):
    change(ours, cancel_job)
    report(ours, status("succeeded", "All 2 steps are committed."))
    commands.clear()
    engine_ready()
    assert commands == []


def test_a_change_made_while_the_one_before_is_sent_is_sent_too(ours, commands, monkeypatch):
    change(ours, set_priority, priority=1)

    def send(name, args, queue, retry):
        commands.append((name, *args))
        if len(commands) == 1:
            change(ours, set_priority, priority=2)

    commands.clear()
    monkeypatch.setattr("portal.jobs.outbox.app.send_task", send)
    send_commands()
    send_commands()
    assert [command[2]["priority"] for command in commands] == [1, 2]


def test_every_state_on_the_way_has_a_name_a_reason_and_what_follows(ours):
    def seen():
        ours.job.refresh_from_db()
        summary = summarize_job(ours.job)
        assert summary["reason"] and summary["next"]
        return summary["status"], summary["transition"], summary["status_label"]

    change(ours, pause_job)
    assert seen() == ("running", "pausing", "Pausing")
    report(ours, control(1), status("paused", "Paused on request after step 1 of 2.", "Resume it to go on."))
    assert seen() == ("paused", "", "Paused")
    change(ours, resume_job)
    assert seen() == ("paused", "resuming", "Resuming")
    report(ours, control(2), status("preparing", "Starting.", "Rollouts begin."))
    assert seen() == ("preparing", "", "Preparing")
    change(ours, cancel_job)
    assert seen() == ("preparing", "cancelling", "Cancelling")
    report(ours, control(3), status("cancelled", "Cancelled on request.", "The adapter of step 1 is kept."))
    assert seen() == ("cancelled", "", "Cancelled")


def test_a_change_of_mind_before_the_engine_answers(ours):
    change(ours, pause_job)
    change(ours, resume_job)
    ours.job.refresh_from_db()
    assert ours.job.transition is None
    assert ours.job.to_control() == JobControl(revision=2, steps=2)


def test_a_paused_job_is_woken_to_be_cancelled(ours):
    """Told to stay paused, the engine would never get to ending it."""
    pause(ours)
    change(ours, cancel_job)
    ours.job.refresh_from_db()
    assert (ours.job.to_control().paused, ours.job.to_control().cancelled) == (False, True)


@pytest.mark.parametrize(("service", "wanted"), [case for case in CHANGES if case[0] not in (cancel_job, resume_job)])
@pytest.mark.parametrize("end", ["finished", "cancelling"])
def test_what_is_final_is_refused(ours, service, wanted, end):
    if end == "finished":
        report(ours, status("failed", "No."))
    else:
        change(ours, cancel_job)
    with pytest.raises(Conflict, match="has ended: failed" if end == "finished" else "is being cancelled") as caught:
        change(ours, service, **wanted)
    assert "continue from an adapter" in caught.value.hint


def test_cancelling_a_finished_job_changes_nothing(ours, sent):
    report(ours, status("succeeded", "Done."))
    assert sent(ours, cancel_job) == []
    ours.job.refresh_from_db()
    assert not ours.job.wants_cancelled


@pytest.mark.parametrize(
    ("service", "wanted", "field", "says"),
    [
        (set_priority, {"priority": 11}, "priority", "must be at most 10"),
        (set_priority, {"priority": -11}, "priority", "must be at least -10"),
        (extend_job, {"steps": 0}, "steps", "must be at least 1"),
        (extend_job, {"steps": 100_001}, "steps", "must be at most 100000"),
        (extend_job, {"steps": 3}, "steps", "must be at least 4"),
    ],
)
def test_impossible_wishes_name_the_field(ours, service, wanted, field, says):
    report(ours, step(2), step(3), step(4))
    with pytest.raises(InvalidInput) as caught:
        change(ours, service, **wanted)
    ((name, message),) = [(error.field, error.message) for error in caught.value.fields]
    assert name == field and says in message
    ours.job.refresh_from_db()
    assert ours.job.control_revision == 0


def test_a_job_can_be_told_to_end_with_the_steps_done(ours):
    report(ours, step(2), step(3))
    change(ours, extend_job, steps=3)
    report(ours, control(1, steps=3))
    assert ours.job.steps == 3


def test_a_job_that_did_more_steps_than_wanted_can_still_be_paused(ours):
    """The step under way when the wish arrives is made."""
    change(ours, extend_job, steps=1)
    report(ours, step(2))
    change(ours, pause_job)


@pytest.mark.parametrize(("service", "wanted"), CHANGES)
def test_foreign_jobs_are_not_found(ours, theirs, service, wanted):
    with pytest.raises(Http404):
        service(tenant=ours.tenant, user=ours.user, job_id=theirs.job.pk, **wanted)


@pytest.mark.parametrize(("service", "wanted"), CHANGES)
def test_viewers_control_nothing(ours, service, wanted):
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    with pytest.raises(NotAllowed):
        service(tenant=ours.tenant, user=viewer, job_id=ours.job.pk, **wanted)


# --- the quota -------------------------------------------------------------------------------------------------------


def limit(owned, jobs):
    Tenant.objects.filter(pk=owned.tenant.pk).update(max_active_jobs=jobs)
    owned.tenant.refresh_from_db()


def test_a_paused_job_makes_room_and_needs_room_to_go_on(ours):
    limit(ours, 1)
    change(ours, pause_job)
    with pytest.raises(QuotaExceeded):  # it still has its place
        create(ours)
    report(ours, control(1), status("paused", "Paused on request."))
    second = create(ours)
    with pytest.raises(QuotaExceeded, match="1 active job"):
        change(ours, resume_job)
    ingest_events(batch=make_batch(second, status("failed", "No.")))
    change(ours, resume_job)
    with pytest.raises(QuotaExceeded):  # it counts from the wish on
        create(ours)


def test_a_job_that_is_pausing_needs_no_further_room_to_go_on(ours):
    limit(ours, 1)
    change(ours, pause_job)
    change(ours, resume_job)


def test_a_paused_job_can_be_cancelled_and_changed_with_the_quota_full(ours):
    limit(ours, 1)
    pause(ours)
    create(ours)
    change(ours, set_priority, priority=1)
    change(ours, extend_job, steps=5)
    change(ours, cancel_job)


def test_a_job_the_operator_holds_says_so(ours):
    held = status("paused", "The operator paused all jobs: new GPUs. Step 1 of 2 is done.", "It goes on by itself.")
    report(ours, held)
    ours.job.refresh_from_db()
    assert (ours.job.transition, ours.job.state_label) == (None, "Paused")
    assert ours.job.state_reason.startswith("The operator paused all jobs")
    assert count_active_jobs(ours.tenant) == 1, "it keeps its place"
    change(ours, pause_job)
    change(ours, resume_job)
    ours.job.refresh_from_db()
    assert ours.job.state_label == "Resuming", "until the engine has answered"
    report(ours, control(2), held)
    ours.job.refresh_from_db()
    assert ours.job.state_label == "Paused" and "operator" in ours.job.state_reason


def race(*services):
    """Run them at once, each in a thread; what they raised."""
    barrier, raised = threading.Barrier(len(services)), []

    def run(service):
        barrier.wait()
        try:
            service()
        except QuotaExceeded as error:
            raised.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[service]) for service in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.django_db(transaction=True)
def test_concurrent_changes_are_all_kept():
    ensure_bundled_base_model()
    owned = build_owned("busy")
    race(
        *[lambda n=n: change(owned, set_priority, priority=n) for n in (1, 2, 3)],
        lambda: change(owned, extend_job, steps=9),
        lambda: change(owned, pause_job),
    )
    job = Job.objects.get(pk=owned.job.pk)
    assert (job.control_revision, job.wanted_steps, job.wants_paused) == (5, 9, True)
    assert job.wanted_priority in (1, 2, 3)


@pytest.mark.django_db(transaction=True)
def test_the_quota_holds_against_resuming_and_creating_at_once():
    ensure_bundled_base_model()
    owned = build_owned("busy")
    pause(owned)
    limit(owned, 1)
    refused = race(*[lambda: create(owned)] * 2, lambda: change(owned, resume_job))
    assert len(refused) == 2
