"""Sampling on CPUs in one kernel: the token and its log-probability, and nothing else.

vLLM draws with a random number for every token of the vocabulary, writes out all their log-probabilities and ranks the
drawn one among them: with 128 sequences and 49k tokens a sixth of a decoding step, for results that nobody reads. Here
a row takes one number, drawn from its request's generator, so that its draws depend on its seed alone, and the kernel
spreads it over the vocabulary. The tokens then race, as with vLLM: logits that differ by rounding, as they do with what
else is in the batch, all but never draw another token. Requests that ask for more than that (truncation of the
distribution, other tokens' log-probabilities) are sampled as vLLM does it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.native.compiler import load_library

if TYPE_CHECKING:
    import torch

SOURCE = Path(__file__).with_suffix(".c")
GREEDY = 1e-5
"""vLLM's bound: a temperature below is 0."""
GREEDY_KEY, LARGEST_KEY = -1, 2**63 - 1


@cache
def _kernel() -> Any:
    library = load_library(SOURCE, "-ffast-math")
    if library is None:
        return None
    library.marlaas_sample.argtypes = [*[ctypes.c_void_p] * 5, *[ctypes.c_int64] * 3]
    library.marlaas_sample.restype = None
    return library.marlaas_sample


def draw(
    logits: torch.Tensor, temperatures: torch.Tensor | None, generators: dict[int, torch.Generator]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [N] and their log-probabilities [N] at the temperatures they are drawn at, 1 where that is 0.

    Args:
        logits: [N, vocabulary], fp32; rows may lie apart, as those of a padded vocabulary do.
        temperatures: [N]; 0 takes the most probable token. None: all 0.
        generators: by row; rows without one draw from torch's own.
    """
    import torch

    rows, width = logits.shape
    inverses, keys = torch.ones(rows), torch.full((rows,), GREEDY_KEY)
    if temperatures is not None:
        random = temperatures >= GREEDY
        inverses = torch.where(random, 1 / temperatures, inverses).to(torch.float32)
        drawn = torch.randint(LARGEST_KEY, (rows,))
        for row, generator in generators.items():
            drawn[row] = torch.randint(LARGEST_KEY, (), generator=generator)
        keys = torch.where(random, drawn, keys)
    tokens, logprobs = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    _kernel()(
        tokens.data_ptr(), logprobs.data_ptr(), logits.data_ptr(), inverses.data_ptr(), keys.data_ptr(), rows, width,
        logits.stride(0),
    )  # fmt: skip
    return tokens, logprobs


def register() -> None:
    """Sample by the kernel from now on, where it compiles. Idempotent."""
    from vllm.v1.sample.sampler import Sampler

    if _kernel() is None or hasattr(Sampler.sample, "vllm"):
        return
    theirs, gather = Sampler.sample, Sampler.gather_logprobs

    def sample(self: Any, logits: torch.Tensor, metadata: Any, mode: Any = None) -> Any:
        served = (
            (mode or self.logprobs_mode) == "processed_logprobs"
            and metadata.max_num_logprobs == 0
            and not metadata.logprob_token_ids
            and metadata.top_k is None
            and metadata.top_p is None
            and not any(getattr(one, "min_p_count", 1) for one in metadata.logitsprocs.argmax_invariant)
            and logits.stride(1) == 1
        )
        if not served:
            return theirs(self, logits, metadata, mode)
        tokens, logprobs = draw(logits, None if metadata.all_greedy else metadata.temperature, metadata.generators)
        return tokens, logprobs[:, None]

    def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> Any:
        """Of the tokens alone, without their ranks. logprobs [N, 1] are theirs already, [N, vocabulary] are all."""
        import torch
        from vllm.v1.outputs import LogprobsTensors

        if num_logprobs != 0:
            return gather(logprobs, num_logprobs, token_ids)
        ids = token_ids[:, None]
        own = logprobs if logprobs.shape[1] == 1 else logprobs.gather(1, ids)
        return LogprobsTensors(ids.to(torch.int32), own, torch.zeros_like(token_ids))

    sample.vllm = theirs  # type: ignore[attr-defined]
    Sampler.sample = sample  # type: ignore[method-assign, assignment]
    Sampler.gather_logprobs = staticmethod(gather_logprobs)  # type: ignore[method-assign]
