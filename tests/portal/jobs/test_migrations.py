"""What older databases hold is carried over."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from portal.jobs.models import Job
from portal.jobs.outbox import send_commands
from portal.jobs.services import ingest_events
from tests.portal.factories import build_owned, evaluation, make_batch
from tests.portal.jobs.test_create import ensure_bundled_base_model


def migrate(*targets):
    executor = MigrationExecutor(connection)
    executor.migrate(list(targets))
    return executor.loader.project_state(list(targets)).apps


@pytest.mark.django_db(transaction=True)
def test_cancel_requests_become_the_first_revision(commands):
    ensure_bundled_base_model()
    template = build_owned("old").job
    ids = {name: uuid4() for name in ("running", "cancelling")}
    try:
        old_job = migrate(("jobs", "0001_initial")).get_model("jobs", "Job")
        values = old_job.objects.filter(pk=template.pk).values().get()
        asked = {"running": None, "cancelling": datetime(2026, 1, 1, tzinfo=UTC)}
        for name, moment in asked.items():
            row = {"id": ids[name], "steps": 7, "cancel_requested_at": moment, "cancel_sent_at": moment}
            old_job.objects.create(**{**values, **row})
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes())
    running, cancelling = (Job.objects.get(pk=ids[name]) for name in ("running", "cancelling"))
    assert (running.control_revision, running.wanted_steps, running.transition) == (0, 7, None)
    assert (cancelling.control_revision, cancelling.wanted_steps) == (1, 7)
    assert cancelling.transition.name == "cancelling"
    commands.clear()
    assert send_commands() == 1
    ((_, job_id, control),) = commands
    assert (job_id, control["cancelled"]) == (cancelling.pk.hex, True)


@pytest.mark.django_db(transaction=True)
def test_jobs_get_the_accuracy_of_their_result():
    """Best was version 1 (0.75), last version 2 (0.5), whose accuracy older rows hold."""
    ensure_bundled_base_model()
    job = build_owned("old").job
    best = evaluation(0.75, 1).model_copy(update={"best": True})
    ingest_events(batch=make_batch(job, best, evaluation(0.5, 2), first=4))
    try:
        old_job = migrate(("jobs", "0004_newest_first")).get_model("jobs", "Job")
        old_job.objects.filter(pk=job.pk).update(accuracy=0.5)
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes())
    job.refresh_from_db()
    assert (job.accuracy, job.last_accuracy) == (0.75, 0.5)
