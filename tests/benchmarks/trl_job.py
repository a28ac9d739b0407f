"""A whole GRPO job in TRL, for part F: generation, reward and training in lockstep, as TRL does it.

It runs in TRL's own environment, ``BENCH_TRL_PYTHON``, with nothing of this project but ``processes``.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tests.benchmarks.processes import serve


class Clock(TrainerCallback):
    """Notes when each step ended."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def on_train_begin(self, *args: Any, **more: Any) -> None:
        self.ends = [time.perf_counter()]

    def on_step_end(self, *args: Any, **more: Any) -> None:
        self.ends.append(time.perf_counter())


class TrlJob:
    def start(self, threads: int) -> str:
        """Returns TRL's version."""
        import trl

        torch.set_num_threads(threads)
        return str(trl.__version__)

    def run(
        self, model_dir: str, dtype: str, device: str, dataset: str, prompts: int, group: int, max_tokens: int,
        steps: int, rank: int, learning_rate: float,
    ) -> dict[str, Any]:  # fmt: skip
        """Train; seconds of each step, and the tokens sampled in all of them."""
        tokens: list[int] = []

        def brevity(completions: list[Any], **more: Any) -> list[float]:
            tokens.extend(len(ids) for ids in more["completion_ids"])
            lengths = [len(completion[0]["content"]) for completion in completions]
            return [min(1.0, max(0.0, (6 * max_tokens - length) / (6 * max_tokens - 4))) for length in lengths]

        rows = [json.loads(line) for line in Path(dataset).read_text().splitlines()]
        clock = Clock()
        with tempfile.TemporaryDirectory(prefix="mbench-trl-") as folder:
            trainer = GRPOTrainer(
                model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype)),
                reward_funcs=brevity,
                args=GRPOConfig(
                    output_dir=folder, use_cpu=device == "cpu", bf16=False, fp16=False, report_to=[],
                    save_strategy="no", logging_strategy="no", disable_tqdm=True,
                    gradient_checkpointing=False, beta=0.0, max_steps=steps,
                    num_generations=group, per_device_train_batch_size=prompts * group,
                    max_completion_length=max_tokens, learning_rate=learning_rate, seed=1000,
                ),
                train_dataset=Dataset.from_list([{"prompt": row["messages"]} for row in rows]),
                processing_class=AutoTokenizer.from_pretrained(model_dir),
                peft_config=LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear"),
                callbacks=[clock],
            )  # fmt: skip
            trainer.train()
        return {"seconds": [b - a for a, b in zip(clock.ends, clock.ends[1:], strict=False)], "tokens": sum(tokens)}


if __name__ == "__main__":
    job = TrlJob()
    serve({"start": job.start, "run": job.run})
