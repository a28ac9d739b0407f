"""What is trained in the benchmarks: models, datasets and equal jobs, all from seeds."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.models import bundled_default, prepare
from engine.spec import BaseModelSpec, JobSpec

NAMESPACE = uuid.UUID("5f0c1f3e-7a4c-4b0e-9a59-2b6f0f8f2c11")
EOS_LOGIT = 5.0
"""Of the tiny model's end token, about: a tenth of the probability, so that replies end by themselves."""


def tiny_model(folder: Path) -> BaseModelSpec:
    """The tiny random model in fp32, taught to end its turns; written into ``folder`` where it is not there yet."""
    if not (folder / "config.json").exists():
        subprocess.run([sys.executable, "-m", "engine", "tiny", str(folder)], check=True, stdout=subprocess.DEVNULL)
        end_turns(folder)
    return BaseModelSpec(
        id="tiny", source="local", location=str(folder), context_length=256, max_lora_rank=8, dtype="float32"
    )


def end_turns(folder: Path) -> None:
    """Give the tiny model a constant logit for its end token, by one dimension that nothing else writes or reads.

    A random model all but never ends its turn, and an episode whose reply is cut off has no second turn.
    """
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    weights = load_file(path)
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    weights["model.embed_tokens.weight"][:, 0] = CONSTANT
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[0] = 0
        elif name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            tensor[:, 0] = 0
    weights["lm_head.weight"][:, 0] = 0
    weights["lm_head.weight"][end, 0] = EOS_LOGIT / NORMED_CONSTANT
    save_file(weights, path, metadata={"format": "pt"})


CONSTANT = 2.0
NORMED_CONSTANT = 0.1
"""What the last norm makes of ``CONSTANT``, about."""


def bundled_model() -> BaseModelSpec:
    """SmolLM2-135M-Instruct, bf16, made ready in the installation's folder once and used in place from then on."""
    spec = bundled_default()
    folder = prepare(spec, EngineConfig().models)
    return spec.model_copy(update={"source": "local", "location": str(folder)})


def chosen_model(size: str, scratch: Path) -> BaseModelSpec:
    """The model timings are taken with: the bundled one in a full run, else the tiny one; ``BENCH_MODEL`` decides."""
    name = os.environ.get("BENCH_MODEL", "bundled" if size == "full" else "tiny")
    if name not in ("tiny", "bundled"):
        raise SystemExit(f"BENCH_MODEL is {name!r}; it can be tiny or bundled")
    return bundled_model() if name == "bundled" else tiny_model(scratch / "tiny")


def write_dataset(path: Path, rows: int = 64) -> dict[str, Any]:
    """Small sums; returns the reference for a spec."""
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"What is {n % 8 + 1}+{n // 8 + 1}? Answer with just the number."}
            ],
            "answer": str(n % 8 + n // 8 + 2),
        }
        for n in range(rows)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(content)
    return {
        "path": str(path),
        "sha256": hashlib.sha256(content).hexdigest(),
        "train_rows": rows,
        "held_out_rows": 0,
    }


def make_job(
    model: BaseModelSpec, dataset: dict[str, Any], *, run: str, index: int, steps: int, prompts: int, group: int,
    max_tokens: int, tool_address: str = "", turns: int = 3, staleness: int = 0,
) -> JobSpec:  # fmt: skip
    """The ``index``-th of a run's equal jobs: everything but its seed, its id and its tenant (of four) is the same.

    Args:
        run: name of the run; the same job of two runs differs in its id alone.
        tool_address: of a ``tests.benchmarks.slow_tool`` server; without one, a single turn.
    """
    length = {"type": "brevity", "target": 4, "limit": 6 * max_tokens}
    settings: dict[str, Any] = {
        "job_id": uuid.uuid5(NAMESPACE, f"{run}/{index}").hex,
        "tenant_id": f"tenant-{index % 4}",
        "name": f"{run} {index}",
        "base_model": model,
        "dataset": dataset,
        "reward": {"grader": length},
        "sampling": {"max_tokens": max_tokens},
        "training": {
            "steps": steps,
            "prompts_per_step": prompts,
            "group_size": group,
            "learning_rate": 1e-4,
            "max_staleness": staleness,
        },
        "lora": {"rank": 8, "alpha": 16},
        # Such batches are dropped and drawn anew, in every mode alike; they end no benchmark.
        "limits": {"max_batches_without_signal": 1000},
        "seed": 1000 + index,
    }
    if tool_address:
        settings["environment"] = {
            "type": "remote", "url": tool_address, "max_turns": turns, "step_timeout_seconds": 60,
        }  # fmt: skip
    return JobSpec.model_validate(settings)
