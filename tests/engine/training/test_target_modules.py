"""Adapters on a choice of layers: trained where they are, served and loaded as they were trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.rollout.worker import RolloutWorker
from engine.store import ADAPTER_FILE
from engine.training.trainer import TrainingError
from engine.types import AdapterRef, Commit, StepResult
from tests.engine.training.factory import make_batch, make_spec
from tests.engine.training.reference import load_peft, sequence_logprobs

LORAS: list[dict[str, Any]] = [
    {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    {"rank": 8, "alpha": 24, "use_rslora": True, "target_modules": ["down_proj"]},
    {"rank": 16, "alpha": 4, "target_modules": ["up_proj", "k_proj", "o_proj"]},
    {"rank": 2, "alpha": 4},
]


def job(index: int) -> str:
    return f"{index}" * 32


def train_all(trainer, tmp_path: Path) -> list[StepResult]:
    """Three steps of each job, one job's steps between another's."""
    specs = [make_spec(job(index), lora=lora) for index, lora in enumerate(LORAS)]
    for spec in specs:
        trainer.open_job(spec, str(tmp_path / spec.job_id))
    for step in (1, 2, 3):
        results = [trainer.train_step(make_batch(step, job_id=spec.job_id)) for spec in specs]
    return results


def test_the_adapter_holds_its_targets_and_nothing_else(make_trainer, tiny_model, tmp_path):
    for result, lora in zip(train_all(make_trainer(), tmp_path), LORAS, strict=True):
        tensors = load_file(Path(result.commit.path) / ADAPTER_FILE)
        modules = {name.split(".")[-3] for name in tensors}
        if "target_modules" in lora:
            assert modules == set(lora["target_modules"])
        assert len(tensors) == 2 * 2 * len(modules)
        assert all(bool(tensor.any()) for tensor in tensors.values())
        with torch.no_grad():
            expected = sequence_logprobs(load_peft(tiny_model, result.commit.path), make_batch(3).probe_ids)
        assert result.probe_logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_jobs_with_other_targets_train_as_if_alone(make_trainer, tmp_path):
    together = train_all(make_trainer(), tmp_path / "together")
    for index, lora in enumerate(LORAS):
        trainer = make_trainer()
        trainer.open_job(make_spec(job(index), lora=lora), str(tmp_path / job(index)))
        for step in (1, 2, 3):
            alone = trainer.train_step(make_batch(step, job_id=job(index)))
        assert alone.commit.sha256 == together[index].commit.sha256


def test_a_target_the_base_does_not_have_is_refused(make_trainer, tmp_path):
    spec = make_spec(lora={"rank": 4, "alpha": 8, "target_modules": ["q_proj", "gate_up_proj"]})
    with pytest.raises(TrainingError, match="gate_up_proj, which this base model does not have; it has down_proj"):
        make_trainer().open_job(spec, str(tmp_path))


@pytest.mark.engine
@pytest.mark.asyncio
async def test_vllm_serves_them_side_by_side_with_the_same_logprobs(make_trainer, tiny_model, tmp_path):
    results = train_all(make_trainer(), tmp_path)
    probe = make_batch(3).probe_ids
    worker = RolloutWorker(
        str(tiny_model), dtype="float32", max_model_len=64, max_loras=len(LORAS), max_lora_rank=16, max_num_seqs=8,
        kv_cache_gib=0.1, device="cpu", threads=1,
    )  # fmt: skip
    await worker.start()
    try:
        for lora_id, result in enumerate(results, 1):
            policy = reference(result.commit, lora_id)
            await worker.load_adapter(policy)
            assert await worker.score(policy, probe) == pytest.approx(result.probe_logprobs, abs=1e-4)
    finally:
        await worker.shutdown()


def reference(commit: Commit, lora_id: int) -> AdapterRef:
    return AdapterRef(commit.job_id, commit.version, lora_id, commit.path, commit.sha256)
