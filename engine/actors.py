"""Ray actors that come back: a call that meets a dead actor starts a new one and is repeated.

Invariant: only calls that may be repeated go through here. A rollout draws again with the same seed; the
trainer answers a step it has committed with the stored result.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError

log = logging.getLogger(__name__)
Result = TypeVar("Result")

ATTEMPTS = 5
"""Starts of an actor for one call before the call fails."""


class StartFailed(RuntimeError):
    """The actor did not come up; the message says why in one line."""


class LostActor(RuntimeError):
    """The actor could not be kept alive."""


class RestartingActor:
    """One Ray actor, made by ``create`` and readied by ``ready``, made anew whenever it is found dead."""

    def __init__(
        self,
        label: str,
        create: Callable[[], ActorHandle],
        ready: Callable[[ActorHandle], Awaitable[Any]] | None = None,
    ) -> None:
        self.label = label
        self._create = create
        self._ready = ready
        self._handle: ActorHandle | None = None
        self._starting: asyncio.Task[ActorHandle] | None = None
        self.generation = 0
        """How often the actor was started: a caller that keeps state in the actor compares it."""

    async def start(self) -> None:
        """Start the actor ahead of the first call. Raises StartFailed; a process that is killed meanwhile is no reason
        to give up."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self.handle()
            except StartFailed as error:
                if attempt == ATTEMPTS or not was_killed(error.__cause__):
                    raise
                log.warning("%s (attempt %d)", error, attempt)
            else:
                return

    async def handle(self) -> ActorHandle:
        """The running actor, started where needed. Raises StartFailed."""
        if self._handle is not None:
            return self._handle
        if self._starting is None:
            # A task of its own, outside the caller's context: where the caller is cancelled, others still wait for this
            # start, and Ray, which cancels what a cancelled call has called, must not take it for a part of that call.
            self._starting = asyncio.get_running_loop().create_task(self._start(), context=contextvars.Context())
        return await asyncio.shield(self._starting)

    async def _start(self) -> ActorHandle:
        handle = self._create()
        try:
            await (self._ready(handle) if self._ready else handle.__ray_ready__.remote())
        except BaseException as error:
            ray.kill(handle)
            if not isinstance(error, Exception):
                raise
            raise StartFailed(f"the {self.label} does not start: {last_line(error)}") from error
        else:
            self._handle = handle
            self.generation += 1
            return handle
        finally:
            self._starting = None

    async def call(
        self,
        method: str,
        *args: Any,
        before: Callable[[ActorHandle, int], Awaitable[Any]] | None = None,
        group: str | None = None,
    ) -> Any:
        """Call a method that may be repeated. Cancelling the caller cancels the call in the actor.

        Args:
            before: awaited with the actor and its generation ahead of every attempt, to put state back into a new one.
            group: of the actor's concurrency groups, the one the method runs in.

        Raises:
            LostActor: it died at every one of ``ATTEMPTS`` attempts.
        """
        for attempt in range(ATTEMPTS):
            handle = None
            try:
                handle = await self.handle()
                if before is not None:
                    await before(handle, self.generation)
                return await call_actor(handle, method, *args, group=group)
            except (RayError, StartFailed) as error:
                log.warning("%s is lost (attempt %d): %s", self.label, attempt + 1, last_line(error))
                if not isinstance(error, TaskCancelledError):  # a call beside this one was cancelled, and this with it
                    self.forget(handle)
                await asyncio.sleep(min(0.2 * 2**attempt, 5))
                last = last_line(error)
        raise LostActor(f"the {self.label} was lost {ATTEMPTS} times in a row; last: {last}")

    async def release(self, method: str, *args: Any) -> None:
        """Call a method that frees what the actor holds; one that is dead holds nothing and is not started for it."""
        if self._handle is not None:
            try:
                await call_actor(self._handle, method, *args)
            except RayError as error:
                log.warning("%s is lost, and with it what it held: %s", self.label, last_line(error))

    def forget(self, handle: ActorHandle | None) -> None:
        """Take ``handle`` for dead; the next call starts another."""
        if handle is not None and self._handle is handle:
            self._handle = None
            ray.kill(handle)

    def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        self.forget(self._handle)


def was_killed(error: BaseException | None) -> bool:
    """Whether an actor's process ended from outside, rather than by an error of its own."""
    return isinstance(error, RayActorError) and not error.actor_init_failed


def last_line(error: BaseException) -> str:
    """What an error says, without the remote traceback Ray puts before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


async def call_actor(handle: ActorHandle, method: str, *args: Any, group: str | None = None) -> Any:
    """Await a method of an actor; where the caller is cancelled, the call is too. What it raised comes as it was."""
    bound = getattr(handle, method)
    reference = (bound.options(concurrency_group=group) if group else bound).remote(*args)
    try:
        return await reference
    except asyncio.CancelledError:
        ray.cancel(reference)
        raise
    except RayTaskError as error:
        cause: BaseException = error
        while isinstance(cause, RayTaskError):
            cause = cause.cause
        raise cause from error


async def gather_or_cancel(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results in order; the first error, or a cancellation, cancels the rest."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
