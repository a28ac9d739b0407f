"""vLLM's engine on a thread of its own, in this process, behind an asyncio face.

vLLM's ``AsyncLLM`` runs the engine in a second process. Here it runs in the caller's: vLLM is imported once instead of
twice, and no process is left behind when the caller is killed.

Invariants: only the thread touches the engine; whoever waits for a result gets one or an exception, also when the
engine breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from vllm.inputs import EngineInput
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class EngineBroken(RuntimeError):
    """The engine failed and serves nothing any more; its process must be started anew."""


class EngineThread:
    """Owns a ``LLMEngine``: builds it, steps it while requests are unfinished, runs calls between steps."""

    def __init__(self, build: Callable[[], LLMEngine], on_broken: Callable[[BaseException], None]) -> None:
        """``build`` runs on the thread; ``on_broken`` is told there when a step fails."""
        self._build = build
        self._on_broken = on_broken
        self._calls: queue.SimpleQueue[Callable[[LLMEngine], None] | None] = queue.SimpleQueue()
        self._outputs: dict[str, Future[RequestOutput]] = {}  # touched by the thread only
        self._unresolved: set[Future[Any]] = set()
        self._lock = threading.Lock()  # guards _unresolved and _closed: no call is left unanswered
        self._closed: BaseException | None = None
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def ready(self) -> None:
        """Wait until the engine is built; raises what building it raised."""
        await asyncio.shield(asyncio.wrap_future(self._ready))

    async def call(self, function: Callable[[LLMEngine], Result]) -> Result:
        """Run ``function`` on the engine's thread, between two steps."""
        result: Future[Result] = Future()

        def run(engine: LLMEngine) -> None:
            try:
                _resolve(result, function(engine))
            except Exception as error:
                _fail(result, error)

        self._enqueue(run, result)
        return await asyncio.shield(asyncio.wrap_future(result))

    async def generate(
        self, request_id: str, prompt: EngineInput, params: SamplingParams, lora: LoRARequest | None, priority: int
    ) -> RequestOutput:
        """The finished output of one request; those of lower ``priority`` are begun first. Cancelling aborts the
        request before this returns."""
        output: Future[RequestOutput] = Future()
        handle: list[str] = []

        def add(engine: LLMEngine) -> None:
            try:
                handle.append(engine.add_request(request_id, prompt, params, lora_request=lora, priority=priority))
                self._outputs[request_id] = output
            except Exception as error:
                _fail(output, error)

        def abort(engine: LLMEngine) -> None:
            if self._outputs.pop(request_id, None) is not None:
                engine.abort_request(handle, internal=True)

        self._enqueue(add, output)
        try:
            return await asyncio.shield(asyncio.wrap_future(output))
        except asyncio.CancelledError:
            output.cancel()
            await asyncio.shield(self.call(abort))
            raise

    def stop(self) -> None:
        """Shut the engine down and end the thread. Requests in flight fail with EngineBroken."""
        self._calls.put(None)
        self._thread.join()

    def _enqueue(self, call: Callable[[LLMEngine], None], result: Future[Any]) -> None:
        with self._lock:
            if self._closed is not None:
                raise EngineBroken(f"the rollout engine has stopped: {self._closed}")
            self._unresolved.add(result)
        result.add_done_callback(self._forget)
        self._calls.put(call)

    def _forget(self, result: Future[Any]) -> None:
        with self._lock:
            self._unresolved.discard(result)

    def _close(self, cause: BaseException) -> None:
        with self._lock:
            self._closed = cause
            unresolved = list(self._unresolved)
        for result in unresolved:
            _fail(result, EngineBroken(f"the rollout engine has stopped: {cause}"))

    def _run(self) -> None:
        try:
            engine = self._build()
        except BaseException as error:
            self._close(error)
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        try:
            while self._run_calls(engine):
                if engine.has_unfinished_requests():
                    self._step(engine)
            self._close(RuntimeError("it was shut down"))
        except BaseException as error:
            logger.exception("The rollout engine failed; every request in flight fails with it.")
            self._close(error)
            self._on_broken(error)
        finally:
            engine.engine_core.shutdown()

    def _run_calls(self, engine: LLMEngine) -> bool:
        """Run what is queued, waiting for a call where the engine is idle. False: stop."""
        wait = not engine.has_unfinished_requests()
        while True:
            try:
                call = self._calls.get(block=wait)
            except queue.Empty:
                return True
            if call is None:
                return False
            call(engine)
            wait = False

    def _step(self, engine: LLMEngine) -> None:
        for output in engine.step():
            if output.finished and (result := self._outputs.pop(output.request_id, None)) is not None:
                _resolve(result, output)


def _resolve(future: Future[Any], value: Any) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_result(value)


def _fail(future: Future[Any], error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
