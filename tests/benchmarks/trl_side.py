"""TRL's own GRPO step, for part C, in TRL's own environment: ``BENCH_TRL_PYTHON`` names its Python.

It needs trl, peft, datasets and torch there, and nothing of this project but ``processes`` and ``batches``.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.benchmarks.batches import rows_of
from tests.benchmarks.processes import forget_peak, peak_bytes, serve


class TrlSide:
    """One GRPOTrainer; its loss, backward pass and optimizer on batches that are given."""

    def start(
        self, model_dir: str, dtype: str, adapter: str, threads: int, device: str, learning_rate: float, group: int,
        max_grad_norm: float,
    ) -> str:  # fmt: skip
        """Returns TRL's version."""
        import trl

        torch.set_num_threads(threads)
        self._output = tempfile.TemporaryDirectory(prefix="mbench-trl-")
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype))
        model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
        arguments = GRPOConfig(
            output_dir=self._output.name, use_cpu=device == "cpu", report_to=[], beta=0.0,
            bf16=False, fp16=False, gradient_checkpointing=False, loss_type="bnpo", num_generations=group,
            per_device_train_batch_size=group, learning_rate=learning_rate, max_grad_norm=max_grad_norm,
        )  # fmt: skip
        self._trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **more: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "?"}] * group),
            processing_class=AutoTokenizer.from_pretrained(model_dir),
        )
        self._trainer.current_gradient_accumulation_steps = 1
        self._parameters = [one for one in self._trainer.model.parameters() if one.requires_grad]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=learning_rate, weight_decay=0.0)
        self._max_grad_norm, self._device = max_grad_norm, self._trainer.accelerator.device
        return str(trl.__version__)

    def step(self, batch: list[dict[str, Any]], rows: int) -> dict[str, Any]:
        """One update from micro-batches of so many rows."""
        forget_peak()
        began = time.perf_counter()
        self._trainer.model.train()
        self._optimizer.zero_grad()
        every = rows_of(batch)
        parts = [every[start : start + rows] for start in range(0, len(every), rows)]
        for part in parts:
            loss = self._trainer.compute_loss(self._trainer.model, self._inputs(part))
            (loss / len(parts)).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        self._optimizer.step()
        return {"update": time.perf_counter() - began, "peak": peak_bytes(), "grad_norm": float(norm)}

    def _inputs(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Prompts padded on the left, completions on the right, as TRL's own generation gives them."""
        prompt = max(len(row["prompt"]) for row in rows)
        completion = max(len(row["ids"]) for row in rows)

        def padded(width: int, name: str, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
            ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
            for index, row in enumerate(rows):
                place = slice(width - len(row[name]), width) if left else slice(0, len(row[name]))
                ids[index, place], mask[index, place] = torch.tensor(row[name]), 1
            return ids.to(self._device), mask.to(self._device)

        prompt_ids, prompt_mask = padded(prompt, "prompt", True)
        completion_ids, completion_mask = padded(completion, "ids", False)
        return {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor([row["advantage"] for row in rows], device=self._device),
            "num_items_in_batch": completion_mask.sum(),
        }


if __name__ == "__main__":
    side = TrlSide()
    serve({"start": side.start, "step": side.step})
