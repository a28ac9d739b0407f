"""Our trainer for part C: ``python -m tests.benchmarks.trainer_side``, told what to do by ``processes``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from engine.spec import BaseModelSpec, JobSpec
from engine.training.trainer import Trainer
from engine.types import PROBE_TOKENS, Group, Score, TrainBatch, Trajectory
from tests.benchmarks.processes import forget_peak, peak_bytes, serve
from tests.benchmarks.workload import make_job


class TrainerSide:
    """The trainer and the jobs it has open."""

    def start(self, model: str, model_dir: str, folder: str, threads: int, device: str, token_budget: int) -> None:
        self._model = BaseModelSpec.model_validate_json(model)
        self._folder = Path(folder)
        self._trainer = Trainer(
            model_dir, dtype=self._model.dtype, device=device, threads=threads, token_budget=token_budget
        )
        self._steps: dict[str, int] = {}

    def open(self, index: int) -> str:
        """Open a job; the folder of its version 0."""
        spec = self._spec(index)
        self._steps[spec.job_id] = 0
        return self._trainer.open_job(spec, str(self._folder / spec.job_id)).path

    def step(self, batch: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
        """Train a job on a batch; seconds of the update and of the whole call, peak memory, the adapter's folder."""
        job_id = self._spec(index).job_id
        self._steps[job_id] += 1
        made = self._batch(job_id, self._steps[job_id], batch)
        forget_peak()
        began = time.perf_counter()
        result = self._trainer.train_step(made)
        return {
            "update": result.metrics["train_seconds"],
            "seconds": time.perf_counter() - began,
            "peak": peak_bytes(),
            "path": result.commit.path,
            "grad_norm": result.metrics["grad_norm"],
        }

    def switch(self, batch: list[dict[str, Any]], jobs: int, rounds: int, resident: bool) -> dict[str, float]:
        """Seconds a step, the jobs taking turns, all of them in memory or only the last; and the memory they take."""
        self._trainer._resident_bytes = 2**50 if resident else 0
        began, steps = time.perf_counter(), 0
        for _ in range(rounds):
            for index in range(jobs):
                self.step(batch, index)
                steps += 1
        return {"seconds": (time.perf_counter() - began) / steps, "memory": psutil.Process().memory_info().rss}

    def same(self, batch: list[dict[str, Any]], steps: int) -> dict[str, float]:
        """Seconds a step of one job that has the trainer to itself."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step(batch)
        return {"seconds": (time.perf_counter() - began) / steps, "memory": psutil.Process().memory_info().rss}

    def _spec(self, index: int) -> JobSpec:
        dataset = {"path": "/nowhere", "sha256": "0" * 64, "train_rows": 1, "held_out_rows": 0}
        return make_job(
            self._model, dataset, run="trainer", index=index, steps=1000, prompts=1, group=2, max_tokens=128
        )

    def _batch(self, job_id: str, step: int, batch: list[dict[str, Any]]) -> TrainBatch:
        groups = [
            Group(
                row=row,
                prompt_ids=group["prompt"],
                prompt_text="",
                answer="",
                trajectories=[
                    Trajectory(one["ids"], [True] * len(one["ids"]), one["logprobs"], 0, "", False, Score(0.0))
                    for one in group["episodes"]
                ],
            )
            for row, group in enumerate(batch)
        ]
        advantages = [[one["advantage"] for one in group["episodes"]] for group in batch]
        return TrainBatch(job_id, step, step, groups, advantages, batch[0]["prompt"][:PROBE_TOKENS])


if __name__ == "__main__":
    side = TrainerSide()
    serve({"start": side.start, "open": side.open, "step": side.step, "switch": side.switch, "same": side.same})
