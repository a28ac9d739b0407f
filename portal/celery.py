"""The portal's Celery app: consumes the engine's event batches, sends the engine its commands by name.

Invariants: the queue ``events`` has one consumer with concurrency 1 (two would reorder a job's events); every task is
idempotent, because a message is acknowledged only after its task and may come again; JSON only. Start it with
``celery -A portal.celery worker -Q events -c 1``. The queue ``deliveries`` (webhooks and mails) has workers of its own,
``celery -A portal.celery worker -Q deliveries -c 1``, because what it sends waits for others.
"""

import os

from celery import Celery
from celery.signals import task_prerun, worker_init, worker_ready
from django.conf import settings
from django.db import close_old_connections, connections

from engine.events import EVENTS_QUEUE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

SWEEP_SECONDS = 15
UPLOAD_SWEEP_SECONDS = 600
TENANT_SWEEP_SECONDS = 300
QUOTA_SWEEP_SECONDS = 60
DELIVERIES_QUEUE = "deliveries"
DELIVERY_SWEEP_SECONDS = 5
BEAT_SECONDS = 15
PRUNE_SECONDS = 3600

app = Celery("portal")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_default_queue=EVENTS_QUEUE,
    task_serializer="json",
    accept_content=["json"],
    result_backend=None,
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=4,
    # A worker killed mid-task leaves its message unacknowledged; these bring it back after the visibility timeout.
    # The hard limit lies below it, so a message never runs twice at once. The timeout equals the engine's: whichever
    # worker looks first restores the messages of both.
    task_time_limit=50,
    broker_transport_options=(
        {"visibility_timeout": 60, "unacked_restore_interval": 2, "unacked_restore_throttle": 1}
        if settings.CELERY_BROKER_URL.startswith("redis")
        else {}
    ),
    timezone="UTC",
    # Tasks after which Celery closes the database's connection; see keep_database_connection.
    CELERY_DB_REUSE_MAX=100_000,
)
app.autodiscover_tasks()


def consumes(worker, queue: str) -> bool:
    return queue in worker.app.amqp.queues.consume_from


@worker_init.connect
def keep_database_connection(sender, **kwargs) -> None:
    """A worker does one task after another on one connection: opening one for each task costs as much as a small batch
    of events, and on SQLite whoever closes the last one writes the log back into the database. One that has failed is
    replaced before the next task."""
    for alias in connections:
        connections.settings[alias] |= {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}
    task_prerun.connect(drop_failed_connections)


def drop_failed_connections(**kwargs) -> None:
    close_old_connections()


@worker_ready.connect
def sweep_commands_regularly(sender, **kwargs) -> None:
    """Re-send, now and then, commands the engine has not answered: neither a job nor a reward trial is ever lost."""
    from portal.jobs.tasks import resend_commands
    from portal.rewards.tasks import sweep_reward_trials

    if consumes(sender, EVENTS_QUEUE):
        resend_commands.delay()
        sender.timer.call_repeatedly(SWEEP_SECONDS, resend_commands.delay)
        sender.timer.call_repeatedly(SWEEP_SECONDS, sweep_reward_trials.delay)


@worker_ready.connect
def sweep_uploads_regularly(sender, **kwargs) -> None:
    """Forget dataset uploads whose day has passed."""
    from portal.datasets.tasks import forget_uploads

    sender.timer.call_repeatedly(UPLOAD_SWEEP_SECONDS, forget_uploads.delay)


@worker_ready.connect
def sweep_tenants_regularly(sender, **kwargs) -> None:
    """Remove tenants whose grace period has passed, and exports that have expired."""
    from portal.tenants.tasks import sweep_tenants

    if consumes(sender, EVENTS_QUEUE):
        sweep_tenants.delay()
        sender.timer.call_repeatedly(TENANT_SWEEP_SECONDS, sweep_tenants.delay)


@worker_ready.connect
def enforce_quotas_regularly(sender, **kwargs) -> None:
    """Stop, in any case soon, who has come to a limit."""
    from portal.usage.tasks import enforce_quotas

    if consumes(sender, EVENTS_QUEUE):
        sender.timer.call_repeatedly(QUOTA_SWEEP_SECONDS, enforce_quotas.delay)


@worker_ready.connect
def deliver_regularly(sender, **kwargs) -> None:
    """Look for messages that are due: first ones nobody woke us for, and those to be tried again."""
    from portal.webhooks.tasks import deliver

    def look() -> None:
        deliver.apply_async(expires=DELIVERY_SWEEP_SECONDS)

    if consumes(sender, DELIVERIES_QUEUE):
        look()
        sender.timer.call_repeatedly(DELIVERY_SWEEP_SECONDS, look)


@worker_ready.connect
def show_signs_of_life(sender, **kwargs) -> None:
    """Beat through the broker, so that a beat proves broker, worker and database; forget old spans."""
    from portal.engine_room.tasks import beat, prune_spans

    if consumes(sender, EVENTS_QUEUE):
        beat.delay()
        sender.timer.call_repeatedly(BEAT_SECONDS, beat.delay)
        sender.timer.call_repeatedly(PRUNE_SECONDS, prune_spans.delay)
