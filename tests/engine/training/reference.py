"""The trainer's arithmetic done plainly: PEFT's own layers, one sequence at a time, autograd throughout."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from engine.types import TrainBatch


def load_peft(model_dir: Path, adapter_dir: str | Path, *, trainable: bool = False) -> PeftModel:
    """The base in fp32 with an exported adapter."""
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    return PeftModel.from_pretrained(base, str(adapter_dir), is_trainable=trainable).eval()


def sequence_logprobs(model: torch.nn.Module, token_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """[len - 1] log-probability of each token but the first."""
    logits = model(input_ids=torch.tensor([token_ids])).logits[0, :-1] / temperature
    return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]


def batch_loss(model: torch.nn.Module, batch: TrainBatch, *, temperature: float, cap: float) -> torch.Tensor:
    """The GRPO loss of a batch at its first update: -sum(A * w * exp(logp - sg(logp))) / tokens the model sampled."""
    total, tokens = torch.zeros(()), 0
    for group, advantages in zip(batch.groups, batch.advantages, strict=True):
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            logprobs = sequence_logprobs(model, group.prompt_ids + trajectory.token_ids, temperature)
            logprobs = logprobs[len(group.prompt_ids) - 1 :]
            for logprob, sampler, sampled in zip(logprobs, trajectory.logprobs, trajectory.loss_mask, strict=True):
                if sampled:
                    weight = min(math.exp(logprob.item() - sampler), cap)
                    total = total - advantage * weight * torch.exp(logprob - logprob.detach())
                    tokens += 1
    return total / tokens
