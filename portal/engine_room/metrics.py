"""Prometheus metrics of the portal and of what the engine reports.

Counters and histograms are this process's (one uvicorn serves an installation); everything about jobs, ingestion and
engine is read from the database at each scrape, so it is right whichever process is asked. Labels are routes, states
and base models: nothing names a tenant, and their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from portal.engine_room import selectors

registry = CollectorRegistry()

REQUEST_SECONDS = Histogram(
    "marlaas_http_request_duration_seconds",
    "From the request's arrival to its answer (to the first byte, where the answer is streamed).",
    ["method", "route"],
    registry=registry,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
REQUESTS = Counter(
    "marlaas_http_requests_total", "Requests answered.", ["method", "route", "status"], registry=registry
)
WEBSOCKETS = Gauge("marlaas_websocket_clients", "WebSockets that are open.", registry=registry)


class InstallationCollector(Collector):
    """What is read from the database; five queries a scrape."""

    def describe(self) -> list[Any]:
        """Nothing ahead of time: registering must not touch the database."""
        return []

    def collect(self) -> Iterator[Any]:
        yield _by_label("marlaas_jobs", "Jobs, by state.", "status", selectors.count_jobs_by_status())
        depths = {name: depth for name, depth in selectors.queue_depths().items() if depth is not None}
        yield _by_label("marlaas_celery_queue_messages", "Messages that wait, by queue.", "queue", depths)
        state = selectors.read_state()
        yield CounterMetricFamily(
            "marlaas_events_ingested", "Events of the engine stored, repeats included.", value=state.events_ingested
        )
        if state.ingest_lag_seconds is not None:
            yield GaugeMetricFamily(
                "marlaas_events_ingest_lag_seconds",
                "From the newest event of the last batch to its storage.",
                value=state.ingest_lag_seconds,
            )
        for name, words, moment in (
            ("marlaas_events_last_ingested_timestamp_seconds", "When the last batch was stored.", state.ingested_at),
            ("marlaas_events_worker_heartbeat_timestamp_seconds", "When the events worker last worked.",
             state.worker_seen_at),
            ("marlaas_engine_report_timestamp_seconds", "When the engine was last heard of.", state.heard_at),
        ):  # fmt: skip
            if moment is not None:
                yield GaugeMetricFamily(name, words, value=moment.timestamp())
        yield GaugeMetricFamily("marlaas_engine_up", "1 where the last report is recent.", value=int(state.is_heard))
        if state.report is not None:
            yield from _engine(state.report)


def _engine(report: Any) -> Iterator[GaugeMetricFamily]:
    """Of the last report, however old: ``marlaas_engine_up`` says whether it is about now."""
    yield _by_label("marlaas_engine_jobs", "Jobs the engine has, by state.", "status", report.jobs)
    yield GaugeMetricFamily(
        "marlaas_engine_draining",
        "1 while the engine is drained.",
        value=int(bool(report.drain and report.drain.draining)),
    )
    yield GaugeMetricFamily(
        "marlaas_engine_unacknowledged_events", "Events the portal has not acknowledged.",
        value=report.unacknowledged_events,
    )  # fmt: skip
    alive = sum(node.alive for node in report.nodes)
    yield GaugeMetricFamily("marlaas_ray_nodes_alive", "Machines of the Ray cluster that are up.", value=alive)
    for name, words, value_of in (
        ("rollout_workers_wanted", "Rollout workers wanted.", lambda pool: pool.wanted_rollout_workers),
        ("rollout_workers_serving", "Rollout workers that serve.",
         lambda pool: sum(worker.state == "serving" for worker in pool.rollout_workers)),
        ("rollout_waiting", "Requests that wait for admission to the rollout.", lambda pool: pool.waiting_for_rollout),
        ("trainer_waiting", "Pieces of work that wait for the trainer's lane.", lambda pool: pool.waiting_for_trainer),
        ("trainer_busy", "1 while the trainer is at work.", lambda pool: int(pool.lane_busy)),
        ("kv_budget_tokens", "Tokens the KV caches hold.", lambda pool: pool.kv_budget_tokens),
        ("kv_granted_tokens", "Tokens of the KV caches claimed.", lambda pool: pool.kv_granted_tokens),
        ("adapters", "Adapter versions requests may name.", lambda pool: pool.adapters),
    ):  # fmt: skip
        values = {pool.base_model: value_of(pool) for pool in report.pools}
        yield _by_label(f"marlaas_pool_{name}", words, "base_model", values)


def _by_label(name: str, words: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


registry.register(InstallationCollector())
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)
GCCollector(registry=registry)
