"""A running engine, without the portal, and runs of equal jobs on it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray

from engine.config import EngineConfig
from engine.events import TERMINAL_STATUSES, Event
from engine.spec import BaseModelSpec, JobSpec
from tests.benchmarks.controller import Call, start_controller
from tests.benchmarks.running import accepts, free_port, say
from tests.benchmarks.spans import Interval

PATIENCE_SECONDS = 1800.0
"""A run in which no event comes for so long has failed."""


@dataclass
class Run:
    """What happened in one run."""

    began: float
    """Seconds since the epoch."""
    specs: list[JobSpec]
    events: dict[str, list[Any]] = field(default_factory=dict)
    """By job, ``engine.events.Event``."""
    calls: list[Call] = field(default_factory=list)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """Of each kind of process."""

    def of(self, spec: JobSpec, kind: str) -> list[Any]:
        return [event for event in self.events.get(spec.job_id, []) if event.payload.type == kind]

    def ended(self, spec: JobSpec) -> float | None:
        """When a job ended, None while it runs. Raises RuntimeError for one that did not succeed."""
        for event in self.of(spec, "status"):
            if event.payload.status in TERMINAL_STATUSES:
                if event.payload.status != "succeeded":
                    raise RuntimeError(f"{spec.name} has {event.payload.status}: {event.payload.reason}")
                return float(event.time)
        return None

    def end(self, jobs: int | None = None) -> float:
        """When the first ``jobs`` of the run had all ended."""
        ends = [self.ended(spec) for spec in self.specs[:jobs]]
        return max(end for end in ends if end is not None)

    def wall(self, jobs: int | None = None) -> float:
        return self.end(jobs) - self.began

    def metrics(self, name: str, jobs: int | None = None) -> list[float]:
        """A metric of all committed steps."""
        steps = [event for spec in self.specs[:jobs] for event in self.of(spec, "step")]
        return [event.payload.metrics[name] for event in steps if name in event.payload.metrics]

    def intervals(self, *methods: str, job_id: str = "") -> list[Interval]:
        return [(s, e) for method, job, s, e in self.calls if method in methods and job_id in ("", job)]

    def spans(self, stage: str, jobs: int | None = None) -> list[Any]:
        found = [event.payload for spec in self.specs[:jobs] for event in self.of(spec, "span")]
        return [span for span in found if span.stage == stage]


class Engine:
    """The engine on a Ray of its own, everything in ``folder``."""

    def __init__(self, folder: Path) -> None:
        config = EngineConfig(var=folder, remote_environments_allow_private=True)
        self.config = config
        self.folder = folder
        self.controller: Any = start_controller(config)
        self._cursor = 0

    def begin(self, model: BaseModelSpec, barrier_of: int = 0) -> None:
        ray.get(self.controller.begin.remote(model, barrier_of))

    def run(self, specs: list[JobSpec], *, one_by_one: bool = False, barrier: bool = False) -> Run:
        """Run jobs to their ends: all submitted at once, or each when the one before has ended."""
        self.begin(specs[0].base_model, len(specs) if barrier else 0)
        before = cpu_seconds()
        run = Run(time.time(), specs)
        for batch in [[spec] for spec in specs] if one_by_one else [specs]:
            for spec in batch:
                ray.get(self.controller.submit.remote(spec.job_id, spec.model_dump(mode="json")))
            self._follow(run, batch)
        run.calls = ray.get(self.controller.calls.remote(specs[0].base_model))
        after = cpu_seconds()
        run.cpu_seconds = {kind: used - before.get(kind, 0.0) for kind, used in after.items()}
        return run

    def _follow(self, run: Run, specs: list[JobSpec]) -> None:
        last_news = last_said = time.monotonic()
        while unfinished := [spec for spec in specs if run.ended(spec) is None]:
            self._cursor, events = ray.get(self.controller.next_events.remote(self._cursor, 1000, 5.0))
            seen: dict[str, int] = {}
            for event in map(Event.model_validate_json, events):
                run.events.setdefault(event.job_id, []).append(event)
                seen[event.job_id] = event.seq
            now = time.monotonic()
            if seen:
                last_news = now
                ray.get(self.controller.acknowledge.remote(seen))
            if now - last_news > PATIENCE_SECONDS:
                raise RuntimeError(f"{unfinished[0].name} has reported nothing for {PATIENCE_SECONDS:g} s")
            if now - last_said > 20:
                last_said = now
                steps = sum(len(run.of(spec, "step")) for spec in specs)
                say(f"    {steps} of {sum(spec.training.steps for spec in specs)} steps")

    def weights(self, spec: JobSpec) -> dict[str, Any]:
        """The last adapter version of a job, tensors by name."""
        from safetensors.torch import load_file

        folder = self.config.job_dir(spec.job_id) / "versions" / str(spec.training.steps)
        return load_file(folder / "adapter_model.safetensors")


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """Ray and the controller, ended afterwards."""
    ray_folder = Path(f"/tmp/mbench-ray-{os.getpid()}")  # the path of a unix socket must be short
    ray.init(
        address="local", namespace="marlaas", include_dashboard=False, log_to_driver=False, configure_logging=False,
        num_cpus=psutil.cpu_count(), object_store_memory=256 * 2**20, _temp_dir=str(ray_folder),
    )  # fmt: skip
    try:
        yield Engine(folder)
    finally:
        ray.shutdown()
        shutil.rmtree(ray_folder, ignore_errors=True)


@contextlib.contextmanager
def slow_tool(turns: int, scale: float) -> Iterator[str]:
    """The address of a running ``tests.benchmarks.slow_tool``."""
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.slow_tool", str(port), str(turns), str(scale)]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 60
        while not accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the tool server does not start")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


KINDS = {
    "ray::BenchController": "controller",
    "ray::RolloutWorker": "rollout",
    "ray::EnvironmentWorker": "environment",
    "ray::Trainer": "trainer",
    "engine.rewards.worker": "graders",
    "raylet": "Ray's own",
    "gcs_server": "Ray's own",
    "tests.benchmarks.slow_tool": "tool server",
}


def cpu_seconds() -> dict[str, float]:
    """Processor time used so far by this process's descendants, by kind; those that have ended are missing."""
    used: dict[str, float] = {"benchmark": sum(psutil.Process().cpu_times()[:2])}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            kind = next((kind for word, kind in KINDS.items() if word in command), "other")
            used[kind] = used.get(kind, 0.0) + sum(process.cpu_times()[:2])
    return used
