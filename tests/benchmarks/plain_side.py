"""What one would write oneself, for part C: PEFT, right padding, whole logits, micro-batches of rows.

``python -m tests.benchmarks.plain_side``, told what to do by ``processes``. The loss is that of ``engine`` at a batch's
first update (GRPO with truncated importance weights, mean over tokens), so the result must be the same.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as our trainer does: both sides share the machine alike

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from engine.store import OPTIMIZER_FILE
from tests.benchmarks.batches import count_tokens, rows_of
from tests.benchmarks.processes import forget_peak, peak_bytes, serve


class PlainSide:
    """One model with one adapter."""

    def start(
        self, model_dir: str, dtype: str, adapter: str, threads: int, device: str, learning_rate: float, cap: float,
        max_grad_norm: float,
    ) -> None:  # fmt: skip
        """``adapter``: folder of the adapter both sides begin with."""
        torch.set_num_threads(threads)
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype)).to(device)
        self._model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
        # Like the engine's: the adapter in fp32 whatever the base.
        self._parameters = [one for one in self._model.parameters() if one.requires_grad]
        for one in self._parameters:
            one.data = one.data.float()
        self._optimizer = torch.optim.AdamW(self._parameters, lr=learning_rate, weight_decay=0.0)
        self._cap, self._max_grad_norm, self._device = cap, max_grad_norm, device

    def step(self, batch: list[dict[str, Any]], rows: int) -> dict[str, Any]:
        """One update from micro-batches of so many rows."""
        forget_peak()
        began = time.perf_counter()
        self._optimizer.zero_grad()
        every, tokens = rows_of(batch), count_tokens(batch)
        for start in range(0, len(every), rows):
            (self._loss(every[start : start + rows]) / tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        self._optimizer.step()
        return {"update": time.perf_counter() - began, "peak": peak_bytes(), "grad_norm": float(norm)}

    def _loss(self, rows: list[dict[str, Any]]) -> torch.Tensor:
        """Sum over the rows' completion tokens."""
        length = max(len(row["prompt"]) + len(row["ids"]) for row in rows)
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        seen, trained = torch.zeros_like(ids), torch.zeros(len(rows), length, dtype=torch.bool)
        sampler = torch.zeros(len(rows), length)
        for index, row in enumerate(rows):
            whole, start = row["prompt"] + row["ids"], len(row["prompt"])
            ids[index, : len(whole)] = torch.tensor(whole)
            seen[index, : len(whole)] = 1
            trained[index, start : len(whole)] = True
            sampler[index, start : len(whole)] = torch.tensor(row["logprobs"])
        ids, seen, trained, sampler = (one.to(self._device) for one in (ids, seen, trained, sampler))
        advantages = torch.tensor([row["advantage"] for row in rows], device=self._device)[:, None]
        logits = self._model(input_ids=ids, attention_mask=seen).logits[:, :-1].float()
        logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
        weight = (logprobs.detach() - sampler[:, 1:]).exp().clamp(max=self._cap)
        losses = -advantages * weight * (logprobs - logprobs.detach()).exp()
        return losses[trained[:, 1:]].sum()

    def save(self, folder: str) -> None:
        """Write the adapter as PEFT does, and beside it Adam's running means of the gradients, by the same names."""
        self._model.save_pretrained(Path(folder))
        means = {
            name.replace(".default.", "."): self._optimizer.state[one]["exp_avg"]
            for name, one in self._model.named_parameters()
            if one.requires_grad
        }
        save_file(means, Path(folder) / OPTIMIZER_FILE)


if __name__ == "__main__":
    side = PlainSide()
    serve({"start": side.start, "step": side.step, "save": side.save})
