"""The engine's Celery app: commands come in on queue ``engine``, event batches go out on queue ``events``.

Run by ``celery -A engine.celery worker -Q engine --pool threads`` (``manage.py up`` does). Ray and a forking pool do
not mix, so the pool is threads. Commands are idempotent and only handed over to the controller, so they are
acknowledged late and delivered again after a crash.
"""

from __future__ import annotations

import os

from amqp.exceptions import ChannelError
from celery import Celery, signals

from engine.logs import configure_logging
from engine.spec import ENGINE_QUEUE

# No fixups: Celery's own would load Django where DJANGO_SETTINGS_MODULE is set.
app = Celery("engine", include=["engine.bridge"], fixups=set())
app.conf.update(
    broker_url=os.environ.get("CELERY_BROKER_URL") or os.environ.get("REDIS_URL", "redis://localhost:6379/0"),
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        # A lost worker's message is delivered again within seconds, not minutes.
        "visibility_timeout": 60,
        "unacked_restore_interval": 2,
        "unacked_restore_throttle": 1,
    },
    accept_content=["json"],
    task_serializer="json",
    task_ignore_result=True,
    task_default_queue=ENGINE_QUEUE,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_acks_on_failure_or_timeout=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,  # Ray needs the real stderr
    worker_enable_remote_control=False,
)


def messages_waiting(queue: str) -> int:
    """Messages that no worker has taken yet."""
    with app.connection_or_acquire() as connection:
        try:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except ChannelError:  # there is none before its first message, and with Redis none when it is empty
            return 0


@signals.setup_logging.connect
def set_up_logging(**_: object) -> None:
    """Ours instead of Celery's."""
    configure_logging()
