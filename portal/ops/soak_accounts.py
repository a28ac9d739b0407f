"""What a soak adds up at its end: every job's events against the engine's ledger and its store of adapter versions.

Pure functions over what was read; nothing here asks the installation anything.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.events import TERMINAL_STATUSES

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class StoredVersion:
    """One adapter version as the store has it."""

    version: int
    sha256: str


@dataclass
class Account:
    """One job's sums."""

    name: str
    tenant: int
    expected: tuple[str, ...]
    """Final states that are right for it."""
    status: str
    reason: str
    committed: int = 0
    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By kind (``steps lost``, ``steps doubled``, ``events missing``, ``events doubled``, ``wrong end``): in words."""


def account_for(
    name: str, tenant: int, expected: tuple[str, ...], events: Events, last_seq: int, stored: list[StoredVersion]
) -> Account:
    """A job's account.

    Args:
        events: as the portal's API returned them.
        last_seq: number of events the engine has written.
        stored: the versions in the store, ascending; retention leaves the last ones.
    """
    statuses = [event["payload"] for event in events if event["type"] == "status"]
    last = statuses[-1] if statuses else {"status": "never taken on", "reason": ""}
    account = Account(name, tenant, expected, last["status"], last["reason"])
    _check_numbers(account, [event["seq"] for event in events], last_seq)
    _check_steps(account, events, stored)
    _check_repeats(account, events)
    if account.status not in expected:
        account.faults["wrong end"].append(f"{account.status}: {account.reason}")
    return account


def _check_numbers(account: Account, numbers: list[int], last_seq: int) -> None:
    counts = Counter(numbers)
    missing = sorted(set(range(1, last_seq + 1)) - counts.keys())
    doubled = sorted(number for number, count in counts.items() if count > 1)
    beyond = sorted(number for number in counts if number > last_seq)
    account.faults["events missing"] += [f"event {number}" for number in missing]
    account.faults["events doubled"] += [f"event {number}" for number in doubled]
    account.faults["events doubled"] += [f"event {number}, which the engine never wrote" for number in beyond]


def _check_steps(account: Account, events: Events, stored: list[StoredVersion]) -> None:
    steps = Counter(event["payload"]["step"] for event in events if event["type"] == "step")
    account.committed = len(steps)
    newest = max([version.version for version in stored] + list(steps), default=0)
    account.faults["steps lost"] += [f"step {step}" for step in range(1, newest + 1) if step not in steps]
    account.faults["steps doubled"] += [f"step {step}" for step, count in steps.items() if count > 1]
    if steps and max(steps) > max((version.version for version in stored), default=0):
        account.faults["steps lost"].append(f"step {max(steps)} is not in the store")
    published = {
        event["payload"]["adapter_version"]: event["payload"]["sha256"]
        for event in events
        if event["type"] == "adapter"
    }
    for version in stored:
        if version.version and published.get(version.version, version.sha256) != version.sha256:
            account.faults["steps doubled"].append(f"version {version.version} is not the one that was published")


def _check_repeats(account: Account, events: Events) -> None:
    """What is said once in a job's life, but under two numbers."""
    said: Counter[str] = Counter()
    for event in events:
        payload = event["payload"]
        match event["type"]:
            case "evaluation":
                said[f"the evaluation of version {payload['adapter_version']}"] += 1
            case "adapter" if not payload["final"]:
                said[f"the publication of version {payload['adapter_version']}"] += 1
            case "adapter":
                said["the result"] += 1
            case "status" if payload["status"] in TERMINAL_STATUSES:
                said["the end"] += 1
    account.faults["events doubled"] += [f"{what} came {count} times" for what, count in said.items() if count > 1]


# --- stages and shares -----------------------------------------------------------------------------------------------


def stage_seconds(jobs: Iterable[tuple[str, Events]]) -> dict[str, dict[str, float]]:
    """By stage: number of spans, median and longest in seconds.

    ``jobs``: (what is added to "environment" where the job's environment is to be told apart, its events).
    """
    durations: dict[str, list[float]] = defaultdict(list)
    for kind, events in jobs:
        for event in events:
            if event["type"] == "span":
                span = event["payload"]
                stage = span["stage"] + (kind if span["stage"] == "environment" else "")
                durations[stage].append(span["end"] - span["start"])
    return {
        stage: {"spans": len(values), "median": statistics.median(values), "longest": max(values)}
        for stage, values in durations.items()
    }


@dataclass
class Share:
    """What a tenant was given while every tenant had a job running."""

    weight: float
    tokens: float = 0.0
    """Trained."""
    accelerator_seconds: float = 0.0


def shares(weights: list[float], jobs: list[tuple[int, Events]]) -> tuple[list[Share], float]:
    """Every tenant's share while all were busy, and how many seconds that was. ``jobs``: (tenant, events)."""
    busy = _busy_periods(len(weights), jobs)
    result = [Share(weight) for weight in weights]
    for tenant, events in jobs:
        for event in events:
            if event["type"] == "step" and any(start <= event["time"] <= end for start, end in busy):
                result[tenant].tokens += event["payload"]["metrics"].get("tokens_trained", 0.0)
                result[tenant].accelerator_seconds += event["payload"]["metrics"].get("accelerator_seconds", 0.0)
    return result, sum(end - start for start, end in busy)


def _busy_periods(tenants: int, jobs: list[tuple[int, Events]]) -> list[tuple[float, float]]:
    """When every tenant had at least one job in status ``running``."""
    changes: list[tuple[float, int, int]] = []
    for tenant, events in jobs:
        running = False
        for event in events:
            if event["type"] == "status" and (event["payload"]["status"] == "running") != running:
                running = not running
                changes.append((event["time"], tenant, 1 if running else -1))
    counts, periods, since = [0] * tenants, [], None
    for time, tenant, change in sorted(changes):
        counts[tenant] += change
        if all(counts) and since is None:
            since = time
        elif not all(counts) and since is not None:
            periods.append((since, time))
            since = None
    return periods


# --- reading the engine's files --------------------------------------------------------------------------------------


def read_last_seqs(var: Path) -> dict[str, int]:
    """How many events the engine has written, by job id."""
    with sqlite3.connect(f"file:{var / 'engine' / 'ledger.sqlite3'}?mode=ro", uri=True) as ledger:
        return dict(ledger.execute("SELECT job_id, last_seq FROM jobs"))


def unacknowledged(var: Path) -> int:
    """How many events the engine still holds because the portal has not said that it has them."""
    with sqlite3.connect(f"file:{var / 'engine' / 'ledger.sqlite3'}?mode=ro", uri=True) as ledger:
        return int(ledger.execute("SELECT count(*) FROM outbox").fetchone()[0])


def read_versions(var: Path, job_id: str) -> list[StoredVersion]:
    """The versions of a job in the store, ascending."""
    manifests = (var / "engine" / "jobs" / job_id / "versions").glob("[0-9]*/manifest.json")
    found = [json.loads(path.read_text()) for path in manifests]
    return sorted(
        (StoredVersion(one["version"], one["files"]["adapter_model.safetensors"]["sha256"]) for one in found),
        key=lambda version: version.version,
    )
