"""The rollout workers of one pool: as many as are wanted, wherever the cluster has room, each replaced when it is lost.

Invariants:
- a version is named to no request before every serving worker has it and has proven, on the probe, that it serves the
  trained weights; a worker that joins proves so every version published by then before it serves: all or none;
- a request whose worker is lost is made again, with the same seed, by another;
- a worker that is taken away finishes what it has begun and is given nothing new;
- the start, loss or trouble of one worker keeps no other from serving.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import RayError, TaskCancelledError

from engine.actors import ATTEMPTS, LostActor, RestartingActor, StartFailed, call_actor, last_line, was_killed
from engine.rollout.adapter_files import AdapterError
from engine.scheduling.metering import SharedMeter
from engine.types import AdapterRef, Completion, RolloutRequest

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
"""Seconds between two starts of a worker that keeps failing."""


class PublishError(RuntimeError):
    """The rollout does not serve what the trainer committed."""


class WorkerLost(RuntimeError):
    """This worker died; another can be asked."""


@dataclass
class Published:
    """A version every serving worker has, or is about to have."""

    reference: AdapterRef
    probe_ids: list[int]
    """T token ids; none: no proof is asked for (version 0 equals the base)."""
    probe_logprobs: list[float]
    """The trainer's T-1 log-probabilities of ``probe_ids[1:]``."""
    gap: float = 0.0
    """Largest mean absolute difference found on the probe, in nats."""


class Seat:
    """One worker's place, filled by one actor after another."""

    def __init__(self, index: int, create: Callable[[], ActorHandle]) -> None:
        self.name = f"rollout-{index}"
        self.index = index
        self.actor = RestartingActor(f"rollout worker {index}", create, lambda actor: call_actor(actor, "start"))
        self.handle: ActorHandle | None = None
        self.serving = False
        self.capacity = 1
        """Tokens its KV cache holds."""
        self.node = ""
        self.claimed = 0.0
        """Tokens of the KV cache claimed by requests in flight."""
        self.calls = 0
        self.idle = asyncio.Event()
        self.lost = asyncio.Event()
        self.failures = 0
        """Starts in a row that failed."""
        self.trouble = ""
        self.keeper: asyncio.Task[None]


class RolloutWorkers:
    """See the module's docstring. Use it from one event loop."""

    def __init__(
        self, create: Callable[[], ActorHandle], probe_tolerance: float, resized: Callable[[int], None]
    ) -> None:
        """
        Args:
            create: makes an actor of ``RolloutWorker``; Ray places it.
            probe_tolerance: largest mean absolute difference of the probe's log-probabilities, in nats.
            resized: told the tokens all KV caches hold together whenever that changes.
        """
        self._create = create
        self._tolerance = probe_tolerance
        self._resized = resized
        self._seats: dict[int, Seat] = {}
        self._meters: defaultdict[int, SharedMeter] = defaultdict(SharedMeter)
        self._versions: dict[int, Published] = {}  # by LoRA id
        self._news = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()

    # --- how many ---

    async def start(self, wanted: int) -> None:
        """Begin to start ``wanted`` workers; returns when the first one serves. Raises StartFailed where none can."""
        self.scale(wanted)
        try:
            await self._someone()
        except LostActor as error:
            raise StartFailed(str(error)) from error

    def scale(self, wanted: int) -> None:
        """Have ``wanted`` workers from now on. New ones join as they come up; surplus ones end when they are idle."""
        for index in range(wanted):
            if index not in self._seats:
                seat = self._seats[index] = Seat(index, self._create)
                seat.keeper = asyncio.create_task(self._keep(seat), name=seat.name)
        for index in [index for index in self._seats if index >= wanted]:
            seat = self._seats.pop(index)
            seat.serving = False
            task = asyncio.create_task(self._leave(seat))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        self._changed()

    def stop(self) -> None:
        for seat in self._seats.values():
            seat.keeper.cancel()
            seat.actor.stop()
        self._seats.clear()

    def describe(self) -> list[dict[str, Any]]:
        """The workers wanted, for a person."""
        return [
            {
                "name": seat.name,
                "state": "serving" if seat.serving else "starting",
                "node": seat.node,
                "kv_capacity_tokens": seat.capacity if seat.serving else 0,
                "requests": seat.calls,
                "trouble": seat.trouble,
            }
            for seat in self._seats.values()
        ]

    @property
    def published(self) -> int:
        """Adapter versions that requests may name."""
        return len(self._versions)

    # --- requests ---

    async def generate(self, request: RolloutRequest, claim: float) -> list[Completion]:
        """Have the least busy worker draw the completions.

        Args:
            claim: tokens of the KV cache they can come to take.

        Raises:
            LostActor: no worker can be kept alive.
        """
        for _ in range(ATTEMPTS):
            await self._someone()
            seat = min(self._serving(), key=lambda seat: seat.claimed / max(1, seat.capacity))
            seat.claimed += claim
            try:
                with self._meters[seat.index].serve(request.job_id):
                    completions: list[Completion] = await self._call(seat, "generate", request)
            except WorkerLost as error:
                last = error
            else:
                return [dataclasses.replace(completion, worker=seat.name) for completion in completions]
            finally:
                seat.claimed -= claim
        raise LostActor(f"{ATTEMPTS} rollout workers were lost in a row; last: {last}")

    def seconds(self, job_id: str) -> float:
        """Accelerator time spent on a job since the last call."""
        return sum(meter.take(job_id) for meter in self._meters.values())

    # --- versions ---

    async def publish(self, version: Published) -> None:
        """Load a version into every worker and prove it there; those that join later do so themselves.

        Raises:
            PublishError: a worker serves something else.
            AdapterError: a worker cannot serve it.
            LostActor: no worker can be kept alive.
        """
        lora_id = version.reference.lora_id
        self._versions[lora_id] = version  # with what follows in one turn of the loop: nobody joins in between
        try:
            proofs = (self._prove(seat, version) for seat in self._serving())
            for outcome in await asyncio.gather(*proofs, return_exceptions=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, WorkerLost):
                    raise outcome
            await self._someone()
        except BaseException:
            del self._versions[lora_id]
            raise

    async def retire(self, reference: AdapterRef) -> None:
        """No new request will name this version: free its slots once the running ones end."""
        self._versions.pop(reference.lora_id, None)
        removals = (self._call(seat, "remove_adapter", reference) for seat in self._serving())
        for outcome in await asyncio.gather(*removals, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, WorkerLost):
                raise outcome

    async def _prove(self, seat: Seat, version: Published) -> None:
        reference = version.reference
        await self._call(seat, "load_adapter", reference)
        if not version.probe_ids:
            return
        logprobs = await self._call(seat, "score", reference, version.probe_ids)
        gap = statistics.fmean(abs(a - b) for a, b in zip(logprobs, version.probe_logprobs, strict=True))
        version.gap = max(version.gap, gap)
        if not gap <= self._tolerance:
            raise PublishError(
                f"{seat.actor.label} does not serve {reference.name} as trained: log-probabilities of the probe "
                f"differ by {gap:.3f} on average (tolerance {self._tolerance})"
            )

    async def _catch_up(self, seat: Seat) -> None:
        """Prove every version that is published; returns in the turn of the loop in which none is missing."""
        proven: set[int] = set()
        while missing := [lora_id for lora_id in self._versions if lora_id not in proven]:
            proven.add(missing[0])
            version = self._versions[missing[0]]
            try:
                await self._prove(seat, version)
            except AdapterError as error:  # the job whose it is hears of it when it asks; the others are not concerned
                log.warning("%s cannot load %s: %s", seat.name, version.reference.name, error)
            if missing[0] not in self._versions:
                await self._call(seat, "remove_adapter", version.reference)

    # --- workers ---

    def _serving(self) -> list[Seat]:
        return [seat for seat in self._seats.values() if seat.serving]

    def _changed(self) -> None:
        self._resized(sum(seat.capacity for seat in self._serving()))
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _someone(self) -> None:
        """Wait until a worker serves. Raises LostActor where each has failed to start over and over."""
        while not self._serving():
            if all(seat.failures >= ATTEMPTS for seat in self._seats.values()):
                trouble = [seat.trouble for seat in self._seats.values()]
                raise LostActor(trouble[0] if trouble else "the pool has no rollout worker")
            await self._news.wait()

    async def _call(self, seat: Seat, method: str, *args: Any) -> Any:
        """Call a worker's method. Raises WorkerLost where it died; its place is then filled anew."""
        handle = seat.handle
        if handle is None:
            raise WorkerLost(f"the {seat.actor.label} is being started anew")
        seat.calls += 1
        try:
            for attempt in range(ATTEMPTS):
                try:
                    return await call_actor(handle, method, *args)
                except TaskCancelledError:  # a call beside this one was cancelled, and this with it
                    if attempt == ATTEMPTS - 1:
                        raise
                    await asyncio.sleep(0.2 * 2**attempt)
        except RayError as error:
            self._lose(seat, handle, last_line(error))
            raise WorkerLost(f"the {seat.actor.label} is lost: {last_line(error)}") from error
        finally:
            seat.calls -= 1
            if not seat.calls:
                seat.idle.set()

    def _lose(self, seat: Seat, handle: ActorHandle | None, why: str) -> None:
        if handle is None or seat.handle is not handle:
            return
        log.warning("%s is lost: %s", seat.name, why)
        seat.handle, seat.serving, seat.trouble = None, False, why
        seat.actor.forget(handle)
        seat.lost.set()
        self._changed()

    async def _keep(self, seat: Seat) -> None:
        """Have an actor in this place, for as long as it is wanted."""
        while True:
            try:
                seat.handle = await seat.actor.handle()
                seat.lost.clear()
                stats = await self._call(seat, "stats")
                seat.capacity, seat.node = stats["kv_capacity_tokens"], stats["node"]
                await self._catch_up(seat)
            except Exception as error:
                await self._failed_to_start(seat, error)
                continue
            seat.serving, seat.failures, seat.trouble = True, 0, ""
            log.info("%s serves on node %s", seat.name, seat.node)
            self._changed()
            await seat.lost.wait()

    async def _failed_to_start(self, seat: Seat, error: Exception) -> None:
        """Note it and pause. An error of its own in the very first start will not go away by itself."""
        log.warning("%s does not come up: %s", seat.name, error)
        self._lose(seat, seat.handle, str(error))
        seat.trouble = str(error)
        hopeless = isinstance(error, StartFailed) and not was_killed(error.__cause__) and not seat.actor.generation
        seat.failures = ATTEMPTS if hopeless else seat.failures + 1
        self._changed()
        await asyncio.sleep(min(0.2 * 2**seat.failures, LONGEST_PAUSE))

    async def _leave(self, seat: Seat) -> None:
        seat.keeper.cancel()
        while seat.calls:
            seat.idle.clear()
            await seat.idle.wait()
        seat.actor.stop()
        log.info("%s has left", seat.name)
