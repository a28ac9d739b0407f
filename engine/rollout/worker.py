"""The rollout worker: completions and scores from the base model and any number of LoRA adapters, by vLLM.

Invariants:
- every request names its policy; one that names none is refused, and an adapter that is not resident is loaded, never
  answered for by the base;
- token ids in, token ids out; the log-probabilities are those of the distribution that was sampled from (the
  request's temperature included);
- a prefix cached under one adapter version is never used for another: the cache's key holds the version's name and id,
  which never recur.

Importing this module imports neither vLLM nor torch: it is the controller's too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import sys
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from engine.rollout import cpu_ops, cpu_sampler
from engine.rollout.adapter_files import TARGET_MODULES, AdapterError, check_adapter
from engine.rollout.engine_thread import EngineThread
from engine.rollout.slots import AdapterSlots
from engine.types import AdapterRef, BasePolicy, Completion, Policy, RolloutRequest

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

logger = logging.getLogger(__name__)

VLLM_RANKS: tuple[Any, ...] = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The rank limits vLLM knows."""
PREFILL_TOKENS = 2048
"""Tokens of one step at most, where no prompt is longer."""


@dataclass(frozen=True)
class Settings:
    """What the engine is built with; see RolloutWorker."""

    model_dir: str
    dtype: Any
    max_model_len: int
    max_loras: int
    max_lora_rank: int
    max_num_seqs: int
    kv_cache_gib: float
    device: Literal["cpu", "cuda"]
    tensor_parallel_size: int
    gpu_memory_utilization: float
    threads: int


class RolloutWorker:
    """Serves one base model. A plain class: make it a Ray actor with ``ray.remote(RolloutWorker)``."""

    def __init__(
        self,
        model_dir: str,
        *,
        dtype: str,
        max_model_len: int,
        max_loras: int,
        max_lora_rank: int,
        max_num_seqs: int,
        kv_cache_gib: float,
        device: Literal["cpu", "cuda"],
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float = 0.5,
        threads: int,
    ) -> None:
        """Begin to start the engine; every method waits until it is up.

        Args:
            model_dir: folder with config.json, safetensors and tokenizer.
            dtype: of the base's weights; adapters are cast to it.
            max_model_len: longest prompt plus completion, in tokens.
            max_loras: adapters in one batch; more are served in turn.
            max_lora_rank: highest rank served. Keep it low: every slot is as wide as this.
            max_num_seqs: sequences decoded at once.
            kv_cache_gib: memory of the KV cache on CPU; on CUDA ``gpu_memory_utilization`` counts.
            threads: OpenMP threads of the engine on CPU.
        """
        self._settings = Settings(
            model_dir, dtype, max_model_len, max_loras, max_lora_rank, max_num_seqs, kv_cache_gib, device,
            tensor_parallel_size, gpu_memory_utilization, threads,
        )  # fmt: skip
        self._slots = AdapterSlots(max_loras, self._load, self._unload)
        self._request_ids = itertools.count()
        self._tokenizer: Any = None
        self._began = time.monotonic()
        set_environment(self._settings)
        self._engine = EngineThread(lambda: build_engine(self._settings), leave_if_actor)
        self._engine.start()

    async def start(self) -> dict[str, Any]:
        """Wait until the engine serves; returns ``stats()``. Raises what starting it raised."""
        await self._ready()
        logger.info("rollout engine up after %.1f s", time.monotonic() - self._began)
        return await self.stats()

    async def generate(self, request: RolloutRequest) -> list[Completion]:
        """Draw ``request.n`` completions.

        Raises:
            TypeError: the request names no policy.
            ValueError: it does not fit the context, or asks for nothing.
            AdapterError: the adapter cannot be served.
        """
        self._check_policy(request.policy)
        self._check_tokens(request.prompt_ids, request.max_tokens)
        if request.n < 1 or request.max_tokens < 1 or request.temperature < 0:
            raise ValueError("n and max_tokens must be at least 1, temperature at least 0")
        await self._ready()
        milliseconds = int(1000 * request.began)
        output = await self._run(request.policy, request.prompt_ids, sampling_params(request), milliseconds)
        return [self._completion(completion, request.policy) for completion in output.outputs]

    async def score(self, policy: Policy, token_ids: list[int]) -> list[float]:
        """Log-probability, at temperature 1, of each of ``token_ids[1:]`` given what precedes it."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._check_policy(policy)
        self._check_tokens(token_ids, 1)
        await self._ready()
        params = SamplingParams(
            max_tokens=1,
            temperature=0,
            prompt_logprobs=0,
            skip_reading_prefix_cache=True,  # a cached prefix has no log-probabilities to return
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        output = await self._run(policy, token_ids, params, priority=0)
        assert output.prompt_logprobs is not None
        scored = zip(token_ids[1:], output.prompt_logprobs[1:], strict=True)
        return [logprobs[token_id].logprob for token_id, logprobs in scored if logprobs is not None]

    async def load_adapter(self, ref: AdapterRef) -> None:
        """Make a version resident ahead of its first request. Raises AdapterError."""
        self._check_policy(ref)
        await self._ready()
        await self._slots.load(ref)

    async def remove_adapter(self, ref: AdapterRef) -> None:
        """Unload a version; returns when the requests that use it have ended and it is gone. Idempotent."""
        self._check_policy(ref)
        await self._ready()
        await self._slots.remove(ref)

    async def stats(self) -> dict[str, Any]:
        """Capacity of the KV cache in tokens, requests running and waiting, adapters resident and in use, and the node
        it runs on."""
        await self._ready()

        def read(engine: LLMEngine) -> dict[str, Any]:
            cache = engine.vllm_config.cache_config
            core: Any = engine.engine_core
            running, waiting = core.engine_core.scheduler.get_request_counts()
            capacity = (cache.num_gpu_blocks or 0) * cache.block_size
            return {"kv_capacity_tokens": capacity, "running": running, "waiting": waiting}

        counts = await self._engine.call(read)
        return {
            **counts,
            "adapters_resident": self._slots.resident,
            "adapters_in_use": self._slots.in_use,
            "node": node_id(),
        }

    async def ping(self) -> str:
        """``ok`` once the engine's thread answers; EngineBroken where it no longer does."""
        await self._ready()
        return await self._engine.call(lambda engine: "ok")

    async def shutdown(self) -> None:
        """Stop the engine and free its memory. Requests in flight fail."""
        await asyncio.to_thread(self._engine.stop)

    async def _ready(self) -> None:
        await self._engine.ready()
        if self._tokenizer is None:
            self._tokenizer = await self._engine.call(lambda engine: engine.renderer.get_tokenizer())

    def _check_policy(self, policy: object) -> None:
        if not isinstance(policy, AdapterRef | BasePolicy):
            raise TypeError(f"a request must name its policy: an AdapterRef or BasePolicy, not {type(policy).__name__}")

    def _check_tokens(self, prompt_ids: list[int], max_tokens: int) -> None:
        limit = self._settings.max_model_len
        if not prompt_ids:
            raise ValueError("the prompt is empty")
        if len(prompt_ids) + max_tokens > limit:
            raise ValueError(
                f"a prompt of {len(prompt_ids)} tokens and {max_tokens} new ones do not fit the context of {limit} "
                "tokens: shorten the prompt or lower max_tokens"
            )

    async def _run(self, policy: Policy, prompt_ids: list[int], params: SamplingParams, priority: int) -> RequestOutput:
        from vllm.inputs import tokens_input

        request_id = str(next(self._request_ids))
        lora = lora_request(policy) if isinstance(policy, AdapterRef) else None
        async with self._hold(policy):
            return await self._engine.generate(request_id, tokens_input(prompt_ids), params, lora, priority)

    def _completion(self, output: CompletionOutput, policy: Policy) -> Completion:
        token_ids = list(output.token_ids)
        assert output.logprobs is not None
        sampled = zip(token_ids, output.logprobs, strict=True)
        logprobs = [chosen[token_id].logprob for token_id, chosen in sampled if chosen is not None]
        if not all(math.isfinite(value) for value in logprobs):
            raise AdapterError(f"{policy.name} gave log-probabilities that are not finite: its weights are unusable")
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            text=self._tokenizer.decode(token_ids, skip_special_tokens=True),
            finish_reason="stop" if output.finish_reason == "stop" else "length",
            policy=policy.name,
        )

    def _hold(self, policy: Policy) -> AbstractAsyncContextManager[None]:
        return self._slots.use(policy) if isinstance(policy, AdapterRef) else nullcontext()

    async def _load(self, ref: AdapterRef) -> None:
        await asyncio.to_thread(check_adapter, ref, self._settings.max_lora_rank)

        def add(engine: LLMEngine) -> None:
            try:
                engine.add_lora(lora_request(ref))
            except Exception as error:
                engine.remove_lora(ref.lora_id)  # it may sit in a slot by half
                raise AdapterError(f"adapter {ref.name} cannot be loaded: {error}") from error

        await self._engine.call(add)

    async def _unload(self, ref: AdapterRef) -> None:
        await self._engine.call(lambda engine: engine.remove_lora(ref.lora_id))


def set_environment(settings: Settings) -> None:
    """Environment of vLLM, OpenMP and torch. Has to precede the first import of torch to take full effect."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ["HF_HUB_OFFLINE"] = "1"  # the model is a local folder
    if settings.device == "cpu":
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
        # Rollout and trainer share the cores: threads that spin at the end of a parallel region would take from each
        # other what they wait for (on two busy cores active waiting gave less than half the tokens per second).
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # The few functions vLLM compiles regardless of eager mode cost seconds at the first request.
        os.environ["TORCH_COMPILE_DISABLE"] = "1"


def build_engine(settings: Settings) -> LLMEngine:
    """vLLM's engine, in this process and on this thread."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    on_cpu = settings.device == "cpu"
    arguments: dict[str, Any] = {}
    if on_cpu:
        torch.set_num_threads(settings.threads)  # OpenMP's setting is per thread
        avoid_inspection_process(settings.model_dir)
        cpu_ops.register()
        cpu_sampler.register()
        arguments |= {
            "kv_cache_memory_bytes": int(settings.kv_cache_gib * 2**30),
            "block_size": 32,  # the smallest the CPU attention takes: the most of a shared prompt is reused
            "enforce_eager": True,
            # vLLM 0.32 on CPU fails on a seeded request whose prompt is split (it rewinds a generator that cannot).
            "enable_chunked_prefill": False,
        }
    else:
        arguments |= {"gpu_memory_utilization": settings.gpu_memory_utilization}
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=settings.model_dir,
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=max(settings.max_model_len, PREFILL_TOKENS),
            tensor_parallel_size=settings.tensor_parallel_size,
            distributed_executor_backend="uni" if settings.tensor_parallel_size == 1 else "mp",
            enable_prefix_caching=True,
            scheduling_policy="priority",
            logprobs_mode="processed_logprobs",
            enable_lora=True,
            max_loras=settings.max_loras,
            max_cpu_loras=2 * settings.max_loras,
            max_lora_rank=next(rank for rank in VLLM_RANKS if rank >= settings.max_lora_rank),
            lora_target_modules=TARGET_MODULES,
            disable_log_stats=True,
            **arguments,
        )
    )


def avoid_inspection_process(model_dir: str) -> None:
    """Import the model's class here, once; vLLM otherwise asks a new process that imports vLLM too."""
    from transformers import AutoConfig
    from vllm import ModelRegistry

    for architecture in AutoConfig.from_pretrained(model_dir).architectures or []:
        if architecture in ModelRegistry.models:
            ModelRegistry.register_model(architecture, ModelRegistry.models[architecture].load_model_cls())


def leave_if_actor(error: BaseException) -> None:
    """End the process of a Ray actor whose engine broke, so that Ray reports the actor dead and it is started anew."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        logging.shutdown()
        os._exit(1)


def node_id() -> str:
    """Ray's id of the node of this actor; empty outside an actor."""
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().get_node_id()) if ray is not None and ray.is_initialized() else ""


def lora_request(ref: AdapterRef) -> LoRARequest:
    from vllm.lora.request import LoRARequest

    # vLLM takes requests of equal name for equal; the id makes the name unique.
    return LoRARequest(lora_name=f"{ref.name}#{ref.lora_id}", lora_int_id=ref.lora_id, lora_path=ref.path)


def sampling_params(request: RolloutRequest) -> SamplingParams:
    """Nothing truncates or reshapes the distribution but the temperature."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        n=request.n,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        seed=spread_seed(request.seed) if request.temperature > 0 else None,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def spread_seed(seed: int) -> int:
    """A seed far from those of neighbouring seeds (SplitMix64): vLLM seeds a request's i-th completion with seed + i,
    so requests with seeds 1 and 2 would share draws."""
    mask = 2**64 - 1
    mixed = (seed + 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) >> 2
