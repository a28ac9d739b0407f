"""The trainer: one frozen base, many jobs' adapters, one serialized lane.

Invariants:
- A step commits once, as the adapter version of its number. Asking again for the committed step gives its result again.
- A job's update is what it would be if the job trained alone: between steps a job's whole state is its last commit, in
  memory or not. Whatever goes wrong in a step, the memory is dropped and the store is the truth.
- Base weights never change.

The class is plain and synchronous: one call at a time. Importing this module does not import torch.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from engine.spec import JobSpec
from engine.store import StoreError, last_commit, read_manifest
from engine.training.batches import check_batch
from engine.training.errors import TrainingError
from engine.types import Commit, StepResult, TrainBatch

if TYPE_CHECKING:
    from engine.training.session import Session

__all__ = ["Trainer", "TrainingError"]


class Trainer:
    """Trains the jobs of one base model, one optimizer step at a time."""

    def __init__(
        self,
        model_dir: str,
        *,
        dtype: str,
        device: str,
        threads: int,
        token_budget: int = 2048,
        resident_bytes: int = 2**31,
    ):
        """Load the base from ``model_dir`` in ``dtype`` (``bfloat16``, ``float16``, ``float32``) onto ``device``.

        ``threads``: CPU threads for arithmetic. ``token_budget``: tokens in one forward pass; bounds memory, changes
        no result; the speed of SmolLM2-135M on a CPU is flat from 512 on. One episode longer than that is a pass of its
        own, with gradient checkpointing. ``resident_bytes``: memory for adapters and optimizers; beyond it the least
        recently trained jobs are reloaded from their last commit when their turn comes. The last one always stays.
        """
        # Read when torch is first imported. Threads that spin at barriers cost a factor of ten where a sampler or
        # anything else wants the same cores.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        import torch

        from engine.training.model import BaseModel

        torch.set_num_threads(threads)
        self._model = BaseModel(model_dir, dtype=dtype, device=device, checkpoint_above=token_budget)
        self._token_budget = token_budget
        self._resident_bytes = resident_bytes
        self._open: dict[str, tuple[JobSpec, str, str]] = {}
        self._resident: OrderedDict[str, tuple[Session, Commit]] = OrderedDict()
        """Least recently used first; each at the state of its last commit."""

    def open_job(self, spec: JobSpec, job_dir: str, start_folder: str = "") -> Commit:
        """Resume a job from its last commit, or commit version 0. Idempotent.

        Version 0's policy is the base's, or that of the adapter in ``start_folder``.
        """
        self._resident.pop(spec.job_id, None)
        self._open[spec.job_id] = (spec, job_dir, start_folder)
        _, commit = self._session(spec.job_id)
        return commit

    def train_step(self, job_id: str, batch: TrainBatch) -> StepResult:
        """The job's AdamW updates on the batch, ``epochs * minibatches`` of them, committed as version ``batch.step``.

        A step that is the last commit already is not repeated: its result is returned again. Raises ``TrainingError``,
        with nothing applied and nothing committed, for a step out of order, a malformed batch, and a loss or gradient
        that is not finite.
        """
        session, last = self._session(job_id)
        if batch.job_id != job_id:
            raise TrainingError(f"the batch belongs to job {batch.job_id}, not to {job_id}")
        if batch.step == last.version:
            _, job_dir, _ = self._open[job_id]
            return self._result(session, last, read_manifest(job_dir, last.version).metrics, batch)
        if batch.step != last.version + 1:
            raise TrainingError(f"step {batch.step} is out of order: the next step of this job is {last.version + 1}")
        check_batch(batch, self._model.vocab_size)
        # Out of memory first: only a step that was committed comes back.
        del self._resident[job_id]
        metrics = self._update(session, batch)
        _, job_dir, _ = self._open[job_id]
        try:
            commit = session.commit(job_dir, step=batch.step, cursor=batch.cursor, metrics=metrics)
        except StoreError as error:
            # A trainer that was taken for lost may have finished its last step since the job was opened here.
            session, last = self._session(job_id)
            if last.version != batch.step:
                raise TrainingError(str(error)) from error
            return self._result(session, last, read_manifest(job_dir, last.version).metrics, batch)
        self._resident[job_id] = (session, commit)
        return self._result(session, commit, metrics, batch)

    def close_job(self, job_id: str) -> None:
        """Forget a job and free its memory. Its commits stay. Idempotent."""
        self._open.pop(job_id, None)
        self._resident.pop(job_id, None)
        self._activate(None)

    def base_digest(self) -> str:
        """sha256 over the base's weights."""
        return self._model.digest()

    def _session(self, job_id: str) -> tuple[Session, Commit]:
        """The job's session at its last commit, from memory or from the store."""
        if job_id in self._resident:
            self._resident.move_to_end(job_id)
            return self._resident[job_id]
        if job_id not in self._open:
            raise TrainingError(f"job {job_id} is not open in this trainer: call open_job first")
        from engine.training.session import Session

        spec, job_dir, start_folder = self._open[job_id]
        session = Session(spec, self._model)
        try:
            commit = last_commit(job_dir)
            if commit is None:
                if start_folder:
                    session.start_from(Path(start_folder))
                commit = session.commit(job_dir, step=0, cursor=0, metrics={})
            else:
                self._check_owner(spec, commit)
                session.restore(commit)
        except StoreError as error:
            raise TrainingError(str(error)) from error
        self._resident[job_id] = (session, commit)
        while len(self._resident) > 1 and self._size() > self._resident_bytes:
            self._resident.popitem(last=False)
        return session, commit

    def _size(self) -> int:
        """Bytes of all resident sessions."""
        return sum(session.size_bytes for session, _ in self._resident.values())

    def _check_owner(self, spec: JobSpec, commit: Commit) -> None:
        if commit.job_id != spec.job_id or commit.rank != spec.lora.rank:
            raise TrainingError(
                f"the folder of job {spec.job_id} (rank {spec.lora.rank}) "
                f"holds job {commit.job_id} (rank {commit.rank})"
            )

    def _activate(self, session: Session | None) -> None:
        from engine.training.lora import activate

        activate(self._model.layers, session.adapter if session else None)

    def _update(self, session: Session, batch: TrainBatch) -> dict[str, float]:
        """Train the session on the batch, in memory; returns the step's metrics."""
        from engine.training.update import update_session

        started = time.perf_counter()
        metrics = update_session(self._model, session, batch, self._token_budget)
        seconds = time.perf_counter() - started
        speed = {"train_tokens_per_second": metrics["tokens_trained"] / seconds} if metrics["tokens_trained"] else {}
        return {**batch.metrics, **metrics, **speed, "train_seconds": seconds}

    def _result(self, session: Session, commit: Commit, metrics: dict[str, float], batch: TrainBatch) -> StepResult:
        self._activate(session)
        return StepResult(
            commit=commit, metrics=dict(metrics), probe_logprobs=self._model.sequence_logprobs(batch.probe_ids)
        )
