"""Commands to the engine are sent at least once."""

from datetime import timedelta

import pytest
from django.utils import timezone
from kombu.exceptions import OperationalError

from engine.spec import ACKNOWLEDGE_EVENTS, CONTROL_JOB, SUBMIT_JOB
from portal.jobs.models import Job
from portal.jobs.outbox import RESEND_AFTER, send_commands
from portal.jobs.services import cancel_job, ingest_events
from portal.jobs.tasks import engine_ready, resend_commands
from tests.portal.factories import make_batch, status
from tests.portal.jobs.test_create import create


@pytest.fixture
def broken_broker(monkeypatch):
    def refuse(*args, **kwargs):
        raise OperationalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr("portal.jobs.outbox.app.send_task", refuse)
        yield patch


def names(commands):
    return [name for name, *_ in commands]


def test_a_job_survives_a_broker_that_is_down(ours, commands, broken_broker, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        job = create(ours)
        cancel_job(tenant=ours.tenant, user=ours.user, job_id=job.pk)
    assert Job.objects.get(pk=job.pk).submit_sent_at is None
    broken_broker.undo()
    commands.clear()
    resend_commands()
    assert names(commands) == [SUBMIT_JOB, CONTROL_JOB]
    resend_commands()
    assert len(commands) == 2


def test_an_unanswered_command_is_sent_again(ours, commands, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        job = create(ours)
    commands.clear()
    assert send_commands() == 0
    Job.objects.filter(pk=job.pk).update(submit_sent_at=timezone.now() - RESEND_AFTER - timedelta(seconds=1))
    assert send_commands() == 1
    assert names(commands) == [SUBMIT_JOB]


def test_a_restarted_engine_gets_them_at_once(ours, commands, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        job = create(ours)
    commands.clear()
    engine_ready()
    assert [(name, sent["job_id"]) for name, sent in commands] == [(SUBMIT_JOB, job.pk.hex)]


def test_an_answered_command_is_not_sent_again(ours, commands):
    job = create(ours)
    ingest_events(batch=make_batch(job, status("preparing", "Loading.")))
    commands.clear()
    engine_ready()
    assert commands == []


def test_events_are_acknowledged_once_stored(ours, commands, django_capture_on_commit_callbacks):
    job = create(ours)
    commands.clear()
    with django_capture_on_commit_callbacks(execute=True):
        ingest_events(batch=make_batch(job, status("preparing", "Loading."), status("running", "Training.")))
    assert commands == [(ACKNOWLEDGE_EVENTS, {job.pk.hex: 2})]


def test_an_ingestion_survives_a_broker_that_is_down(ours, broken_broker, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        ingest_events(batch=make_batch(ours.job, status("succeeded", "Done."), first=4))
    ours.job.refresh_from_db()
    assert ours.job.status == "succeeded"
