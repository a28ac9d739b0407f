"""The trainer: one frozen base, many jobs' adapters, one serialized lane, in whose turns small batches go together.

Invariants:
- A step commits once, as the adapter version of its number. Asking again for the committed step gives its result again.
- A job's update is what it would be if the job trained alone, also where it shares passes: between steps a job's whole
  state is its last commit, in memory or not. Whatever goes wrong in a step, the memory is dropped and the store is the
  truth.
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
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    proof: Future[list[list[float]]]
    """Log-probabilities of the probes of all jobs of the turn ..."""
    place: int
    """... and this job's place among them."""
    commit: Commit | None
    """Set where the step was committed before."""
    turn_seconds: float


@dataclass(frozen=True)
class _Begun:
    """A batch about to be trained, and its job's session at its last commit."""

    session: Session
    batch: TrainBatch
    commit: Commit | None
    """Set where the batch's step is committed already."""


class Trainer:
    """Trains the jobs of one base model, a turn at a time."""

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

        ``threads``: CPU threads for arithmetic. ``token_budget``: tokens in the passes under way; it bounds memory and
        changes no result. One episode longer than that is a pass of its own, with gradient checkpointing.
        ``resident_bytes``: memory for adapters and optimizers; beyond it the least recently trained jobs are reloaded
        from their last commit when their turn comes. The last one always stays.
        """
        # Read when torch is first imported. Threads that spin at barriers cost a factor of ten where a sampler or
        # anything else wants the same cores.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        import torch

        from engine.training.model import BaseModel
        from engine.training.passes import PassRunner

        torch.set_num_threads(threads)
        self._model = BaseModel(model_dir, dtype=dtype, device=device, checkpoint_above=token_budget)
        # The probes of a turn are computed beside the next turn, on a thread of one core.
        self._prover = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
        self._prover.submit(os.getpid).result()
        torch.set_num_threads(threads)
        self._passes = PassRunner(threads, token_budget, self._model.device)
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

    def update(self, batches: Sequence[TrainBatch]) -> list[Exception | None]:
        """For each job whose batch is given, its AdamW updates on it, ``epochs * minibatches`` of them, in memory;
        ``commit`` comes next. A job has one of the batches at most; small ones share passes.

        A step that is the last commit already is not repeated. Returns for each batch why nothing was applied
        (``TrainingError``: it is out of order or malformed, or its loss or gradient is not finite), or None.
        """
        begun: list[_Begun | Exception] = []
        for batch in batches:
            try:
                begun.append(self._begin(batch))
            except Exception as error:
                begun.append(error)
        ready = [one for one in begun if not isinstance(one, Exception)]
        try:
            failed = self._update(ready)
        except Exception as error:
            if len(batches) == 1:
                return [error]
            # Whose fault it is shows when each is alone; what was applied is forgotten with the sessions.
            return [self.update([batch])[0] for batch in batches]
        return [one if isinstance(one, Exception) else failed.get(one.batch.job_id) for one in begun]

    def _begin(self, batch: TrainBatch) -> _Begun:
        """Take the job's session out of memory: only a step that is committed puts it back."""
        job_id = batch.job_id
        self._wait_for_commit(job_id)
        with self._mutex:
            self._updated.pop(job_id, None)  # its commit was never asked for
        session, last = self._session(job_id)
        if batch.step not in (last.version, last.version + 1):
            raise TrainingError(f"step {batch.step} is out of order: the next step of this job is {last.version + 1}")
        check_batch(batch, self._model.vocab_size)
        with self._mutex:
            del self._resident[job_id]
        return _Begun(session, batch, last if batch.step == last.version else None)

    def _update(self, begun: Sequence[_Begun]) -> dict[str, TrainingError]:
        """Make the updates that are not committed yet and prove all; returns by job what could not be made."""
        from engine.training.update import update_sessions

        started = time.perf_counter()
        steps = [one for one in begun if one.commit is None]
        work = [(one.session, one.batch) for one in steps]
        made = update_sessions(self._model, work, self._passes, self._token_budget)
        metrics: dict[str, dict[str, float]] = {}
        failed: dict[str, TrainingError] = {}
        for one, outcome in zip(steps, made, strict=True):
            if isinstance(outcome, TrainingError):
                failed[one.batch.job_id] = outcome
            else:
                metrics[one.batch.job_id] = {**one.batch.metrics, **outcome}
        for one in begun:
            if one.commit is not None:
                stored = read_manifest(self._open[one.batch.job_id][1], one.commit.version)
                metrics[one.batch.job_id] = stored.metrics
        done = [one for one in begun if one.batch.job_id in metrics]
        seconds = time.perf_counter() - started
        probes = [(one.session.adapter, one.batch.probe_ids) for one in done]
        proof = self._prover.submit(self._model.sequence_logprobs, probes)
        for index, one in enumerate(done):
            batch = one.batch
            with self._mutex:
                self._updated[batch.job_id] = Updated(
                    one.session, batch.step, batch.cursor, metrics[batch.job_id], proof, index, one.commit, seconds
                )
        return failed

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
                probe_logprobs=updated.proof.result()[updated.place],
                commit_seconds=time.perf_counter() - started,
                turn_seconds=updated.turn_seconds,
            )
        finally:
            with self._mutex:
                del self._committing[job_id]
            over.set()

    def train_step(self, batch: TrainBatch) -> StepResult:
        """``update`` of one job and ``commit``, again where the update was lost. Raises what ``update`` returns."""
        while True:
            (error,) = self.update([batch])
            if error is not None:
                raise error
            try:
                return self.commit(batch.job_id, batch.step)
            except UpdateLost:
                continue

    def close_job(self, job_id: str) -> None:
        """Forget a job and free its memory. Its commits stay; one that is being written is waited for. Idempotent."""
        self._drop(job_id)
        self._open.pop(job_id, None)

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
