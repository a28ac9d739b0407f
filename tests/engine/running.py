"""A running engine without the portal, driven by tests: submits jobs and keeps what is reported."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import ray
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.controller import connect
from engine.events import TERMINAL_STATUSES, Event
from engine.spec import JobSpec

PATIENCE = 240
SHORT = {"type": "brevity", "target": 5, "limit": 60}


class Engine:
    """A running engine and everything it has reported."""

    def __init__(self, var: Path, model: Path, **config: Any) -> None:
        self.var = var
        self.model = model
        os.environ["MARLAAS_PROBE_TOLERANCE"] = "0.001"
        settings = {"adapter_slots": 2, "kv_cache_gib": 0.05, "max_sequences": 64, "threads": 1, **config}
        self.controller = connect(EngineConfig(var=var, **settings))
        self._cursor = 0
        self.events: dict[str, list[dict[str, Any]]] = {}
        self._revisions = itertools.count(1)
        rows = [
            {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": str(a + b), "split": split}
            for a in range(6)
            for b, split in enumerate(("train", "train", "held_out"))
        ]
        self.dataset = var / "rows.jsonl"
        self.dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def spec(self, steps: int, **changes: Any) -> JobSpec:
        data: dict[str, Any] = {
            "job_id": uuid.uuid4().hex,
            "tenant_id": "tenant",
            "base_model": {
                "id": "tiny", "source": "local", "location": str(self.model), "context_length": 128,
                "max_lora_rank": 8, "dtype": "float32",
            },
            "dataset": {
                "path": str(self.dataset), "sha256": hashlib.sha256(self.dataset.read_bytes()).hexdigest(),
                "train_rows": 12, "held_out_rows": 6,
            },
            "reward": {"grader": SHORT},
            "sampling": {"max_tokens": 8},
            "training": {"steps": steps, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-4},
            "lora": {"rank": 4, "alpha": 8},
        }  # fmt: skip
        for path, value in changes.items():
            *sections, name = path.split("__")
            target = data
            for section in sections:
                target = target.setdefault(section, {})
            target[name] = value
        return JobSpec.model_validate(data)

    def submit(self, steps: int, **changes: Any) -> str:
        spec = self.spec(steps, **changes)
        ray.get(self.controller.submit.remote(spec.job_id, spec.model_dump(mode="json")))
        return spec.job_id

    def control(self, job_id: str, **wishes: Any) -> None:
        control = {"revision": next(self._revisions), **wishes}
        ray.get(self.controller.control.remote(job_id, control))

    def look(self) -> None:
        """Take in what was reported since."""
        self._cursor, events = ray.get(self.controller.next_events.remote(self._cursor, 1000, 1.0))
        for event in map(Event.model_validate_json, events):
            known = self.events.setdefault(event.job_id, [])
            assert event.seq == len(known) + 1
            known.append(event.payload.model_dump())

    def of(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events.get(job_id, []) if event["type"] == kind]

    def wait_for(self, condition, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen"
            self.look()

    def status(self, job_id: str) -> dict[str, Any]:
        return (self.of(job_id, "status") or [{"status": ""}])[-1]

    def wait(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.wait_for(
                lambda job_id=job_id: self.status(job_id)["status"] in TERMINAL_STATUSES, f"the end of {job_id}"
            )

    def wait_for_status(self, job_id: str, status: str) -> None:
        self.wait_for(lambda: self.status(job_id)["status"] == status, f"status {status}")

    def wait_for_step(self, job_id: str, step: int) -> None:
        self.wait_for(lambda: len(self.of(job_id, "step")) >= step, f"step {step}")

    def steps(self, job_id: str) -> list[int]:
        return [event["step"] for event in self.of(job_id, "step")]

    def weights(self, job_id: str, version: int) -> dict[str, torch.Tensor]:
        folder = self.var / "engine" / "jobs" / job_id / "versions" / str(version)
        return load_file(folder / "adapter_model.safetensors")
