"""One real engine for all rollout tests, adapters for it, and PEFT as the reference."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from engine.rollout.worker import RolloutWorker
from engine.types import AdapterRef, Policy

SLOTS = 3
MAX_RANK = 16
MAX_MODEL_LEN = 192

MakeAdapter = Callable[..., AdapterRef]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def worker(tiny_model: Path) -> AsyncIterator[RolloutWorker]:
    """A worker on the tiny model in fp32, with three slots."""
    worker = RolloutWorker(
        str(tiny_model),
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_loras=SLOTS,
        max_lora_rank=MAX_RANK,
        max_num_seqs=64,
        kv_cache_gib=0.1,
        device="cpu",
        threads=2,
    )
    await worker.start()
    yield worker
    await worker.shutdown()


@pytest.fixture(scope="session")
def make_adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeAdapter:
    """Write a random adapter, strong enough to change what the model says, as one version of a job."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    ids = iter(range(1, 10_000))

    def make(
        *, rank: int = 8, alpha: float = 16, use_rslora: bool = False, job_id: str = "", version: int = 1,
        modules: str | list[str] = "all-linear",
    ) -> AdapterRef:  # fmt: skip
        lora_id = next(ids)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lora_id)
            model = AutoModelForCausalLM.from_pretrained(tiny_model)
            config = LoraConfig(r=rank, lora_alpha=alpha, use_rslora=use_rslora, target_modules=modules)
            peft_model = get_peft_model(model, config)
            for name, parameter in peft_model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.1)
        folder = tmp_path_factory.mktemp("adapter")
        peft_model.save_pretrained(folder)
        sha256 = hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
        return AdapterRef(job_id or uuid.uuid4().hex, version, lora_id, str(folder), sha256)

    return make


class Reference:
    """The tiny model under a policy, by transformers and PEFT, in fp32."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self._models: dict[str, Any] = {}

    def logits(self, policy: Policy, token_ids: list[int]) -> torch.Tensor:
        """[tokens, vocabulary]"""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        if policy.name not in self._models:
            model = AutoModelForCausalLM.from_pretrained(self.model_dir)
            if isinstance(policy, AdapterRef):
                model = PeftModel.from_pretrained(model, policy.path)
            self._models[policy.name] = model.eval()
        with torch.no_grad():
            return self._models[policy.name](torch.tensor([token_ids])).logits[0]

    def logprobs(self, policy: Policy, prompt: list[int], completion: list[int], temperature: float) -> torch.Tensor:
        """Of each token of the completion."""
        logits = self.logits(policy, prompt + completion)[len(prompt) - 1 : -1]
        return torch.log_softmax(logits / temperature, -1)[range(len(completion)), completion]

    def greedy(self, policy: Policy, prompt: list[int], max_tokens: int, end: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < max_tokens and (not tokens or tokens[-1] != end):
            tokens.append(int(self.logits(policy, prompt + tokens)[-1].argmax()))
        return tokens


@pytest.fixture(scope="session")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)
