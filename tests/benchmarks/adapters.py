"""``python -m tests.benchmarks.adapters MODEL_JSON FOLDER COUNT``: version 0 of so many jobs, for part B.

Version 0 equals the base, so what is drawn with it, and for how many tokens, is the same with and without it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from engine.config import EngineConfig
from engine.models import prepare
from engine.spec import BaseModelSpec
from engine.training.trainer import Trainer
from tests.benchmarks.workload import make_job


def main(model_json: str, folder: Path, count: int) -> None:
    model = BaseModelSpec.model_validate_json(model_json)
    trainer = Trainer(str(prepare(model, EngineConfig().models)), dtype=model.dtype, device="cpu", threads=1)
    dataset = {"path": "/nowhere", "sha256": "0" * 64, "train_rows": 1, "held_out_rows": 0}
    made = []
    for index in range(count):
        spec = make_job(model, dataset, run="adapters", index=index, steps=1, prompts=1, group=2, max_tokens=8)
        commit = trainer.open_job(spec, str(folder / "adapters" / spec.job_id))
        trainer.close_job(spec.job_id)
        made.append({"path": commit.path, "sha256": commit.sha256})
    (folder / "adapters.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
