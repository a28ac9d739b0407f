"""The trainer: one frozen base, many jobs' adapters, one serialized lane.

Invariants:
- A step commits once, as the adapter version of its number. Asking again for the committed step gives its result again.
- A job's update is what it would be if the job trained alone: between steps a job's whole state is its last commit, in
  memory or not. Whatever goes wrong in a step, the memory is dropped and the store is the truth.
- Base weights never change.

The class is plain and synchronous: one call at a time, but for ``commit``, which may run beside another job's
``update``: writing and syncing a version takes as long as a small step on a fast accelerator, and the lane need not
wait for it. Importing this module does not import torch.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.spec import JobSpec
from engine.store import StoreError, last_commit, read_manifest
from engine.training.batches import check_batch
from engine.training.errors import TrainingError, UpdateLost
from engine.types import Commit, StepResult, TrainBatch

if TYPE_CHECKING:
    from engine.training.session import Session

__all__ = ["Trainer", "TrainingError", "UpdateLost"]


@dataclass(frozen=True)
class Updated:
    """A job's state after ``update``, of which nothing is committed yet."""

    session: Session
    step: int
    cursor: int
    metrics: dict[str, float]
    probe_logprobs: list[float]
    commit: Commit | None
    """Set where the step was committed before."""


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
        self._updated: dict[str, Updated] = {}
        self._committing: dict[str, threading.Event] = {}
        """Set when the commit being written is over."""
        self._mutex = threading.Lock()
        """Held for a moment by whoever looks into the three above."""

    def open_job(self, spec: JobSpec, job_dir: str, start_folder: str = "") -> Commit:
        """Resume a job from its last commit, or commit version 0. Idempotent.

        Version 0's policy is the base's, or that of the adapter in ``start_folder``.
        """
        self._drop(spec.job_id)
        self._open[spec.job_id] = (spec, job_dir, start_folder)
        _, commit = self._session(spec.job_id)
        return commit

    def update(self, job_id: str, batch: TrainBatch) -> None:
        """The job's AdamW updates on the batch, ``epochs * minibatches`` of them, in memory; ``commit`` comes next.

        A step that is the last commit already is not repeated. Raises ``TrainingError``, with nothing applied, for a
        step out of order, a malformed batch, and a loss or gradient that is not finite.
        """
        self._wait_for_commit(job_id)
        with self._mutex:
            self._updated.pop(job_id, None)  # its commit was never asked for
        session, last = self._session(job_id)
        if batch.job_id != job_id:
            raise TrainingError(f"the batch belongs to job {batch.job_id}, not to {job_id}")
        if batch.step not in (last.version, last.version + 1):
            raise TrainingError(f"step {batch.step} is out of order: the next step of this job is {last.version + 1}")
        check_batch(batch, self._model.vocab_size)
        with self._mutex:
            del self._resident[job_id]  # only a step that was committed comes back
        if batch.step == last.version:
            _, job_dir, _ = self._open[job_id]
            committed, metrics = last, read_manifest(job_dir, last.version).metrics
        else:
            committed, metrics = None, self._update(session, batch)
        self._activate(session)
        probe = self._model.sequence_logprobs(batch.probe_ids)
        with self._mutex:
            self._updated[job_id] = Updated(session, batch.step, batch.cursor, metrics, probe, committed)

    def commit(self, job_id: str, step: int) -> StepResult:
        """Commit what ``update`` made, as version ``step``; asked for once. May run beside the other methods.

        Raises ``UpdateLost`` where there is no such update, or the store has the step from elsewhere: ask for the
        update again.
        """
        with self._mutex:
            updated = self._updated.pop(job_id, None)
            if updated is None or updated.step != step:
                raise UpdateLost(f"step {step} of job {job_id} is not in this trainer")
            _, job_dir, _ = self._open[job_id]
            over = self._committing[job_id] = threading.Event()
        started = time.perf_counter()
        try:
            commit = updated.commit or updated.session.commit(
                job_dir, step=step, cursor=updated.cursor, metrics=updated.metrics
            )
        except StoreError as error:
            # A trainer that was taken for lost may have finished its last step since the job was opened here.
            last = last_commit(job_dir)
            if last is not None and last.version == step:
                raise UpdateLost(str(error)) from error
            raise TrainingError(str(error)) from error
        else:
            with self._mutex:
                self._resident[job_id] = (updated.session, commit)
            return StepResult(
                commit=commit,
                metrics=dict(updated.metrics),
                probe_logprobs=updated.probe_logprobs,
                commit_seconds=time.perf_counter() - started,
            )
        finally:
            with self._mutex:
                del self._committing[job_id]
            over.set()

    def train_step(self, job_id: str, batch: TrainBatch) -> StepResult:
        """``update`` and ``commit``, again where the update was lost."""
        while True:
            self.update(job_id, batch)
            try:
                return self.commit(job_id, batch.step)
            except UpdateLost:
                continue

    def close_job(self, job_id: str) -> None:
        """Forget a job and free its memory. Its commits stay; one that is being written is waited for. Idempotent."""
        self._drop(job_id)
        self._open.pop(job_id, None)
        self._activate(None)

    def base_digest(self) -> str:
        """sha256 over the base's weights."""
        return self._model.digest()

    def _wait_for_commit(self, job_id: str) -> None:
        """Return when no commit of the job is being written. Nobody asks for another meanwhile: the caller is next."""
        with self._mutex:
            over = self._committing.get(job_id)
        if over is not None:
            over.wait()

    def _drop(self, job_id: str) -> None:
        """Forget what is in memory of a job; the store is the truth."""
        self._wait_for_commit(job_id)
        with self._mutex:
            self._updated.pop(job_id, None)
            self._resident.pop(job_id, None)

    def _session(self, job_id: str) -> tuple[Session, Commit]:
        """The job's session at its last commit, from memory or from the store."""
        with self._mutex:
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
        with self._mutex:
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
