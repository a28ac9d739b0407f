"""The trainer: one update and one commit a step, jobs that do not touch each other, nothing half-applied."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.store import ADAPTER_FILE, CONFIG_FILE, OPTIMIZER_FILE, StoreError, last_commit, list_versions
from engine.training.session import Session
from engine.training.trainer import Trainer, TrainingError
from engine.types import Commit, TrainBatch
from tests.engine.training.factory import make_batch, make_spec, with_trajectory
from tests.engine.training.reference import batch_loss, load_peft, sequence_logprobs

A, B, C = "a" * 32, "b" * 32, "c" * 32


def files_of(commit: Commit) -> dict[str, bytes]:
    return {name: (Path(commit.path) / name).read_bytes() for name in (ADAPTER_FILE, OPTIMIZER_FILE)}


def run_steps(trainer: Trainer, spec, job_dir: Path, steps: int) -> list[Commit]:
    """Train a job from its last commit up to step ``steps``."""
    commit = trainer.open_job(spec, str(job_dir))
    commits = [commit]
    for step in range(commit.step + 1, steps + 1):
        commits.append(trainer.train_step(make_batch(step, job_id=spec.job_id)).commit)
    return commits


@pytest.fixture(scope="module")
def trainer(make_trainer) -> Trainer:
    return make_trainer()


def test_importing_the_trainer_does_not_import_torch():
    code = "import sys, engine.training.trainer, engine.store; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version_0_is_the_base_and_follows_from_the_seed(trainer, make_trainer, tmp_path):
    first = trainer.open_job(make_spec(A, seed=3), str(tmp_path / "a"))
    assert (first.version, first.step, first.cursor, first.rank) == (0, 0, 0, 4)
    again = make_trainer().open_job(make_spec(B, seed=3), str(tmp_path / "b"))
    other = trainer.open_job(make_spec(C, seed=4), str(tmp_path / "c"))
    assert first.sha256 == again.sha256 != other.sha256
    tensors = load_file(Path(first.path) / ADAPTER_FILE)
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        assert bool(tensor.any()) == ("lora_A" in name)
    # every linear layer of both blocks: q, k, v, o, gate, up, down
    assert len(tensors) == 2 * 7 * 2


def test_a_step_is_one_adamw_update(trainer, tiny_model, tmp_path):
    spec = make_spec(A, temperature=0.8, weight_decay=0.1, max_grad_norm=0.05)
    start = trainer.open_job(spec, str(tmp_path))
    batch = make_batch(1)
    result = trainer.train_step(batch)

    model = load_peft(tiny_model, start.path, trainable=True)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-2, weight_decay=0.1)
    loss = batch_loss(model, batch, temperature=0.8, cap=2.0)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 0.05)
    optimizer.step()

    assert norm > 0.05, "the test should clip"
    assert result.metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert result.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    trained = load_file(Path(result.commit.path) / ADAPTER_FILE)
    moved = 0
    for name, parameter in parameters.items():
        value = trained[name.replace(".default", "")]
        if "lora_B" in name:
            # A's gradient is 0 while B = 0, and Adam divides what is left of it by its own size: compare B
            torch.testing.assert_close(value, parameter.data, rtol=0, atol=2e-5)
            moved += int(value.any())
    assert moved == 14


def test_the_result_of_a_step(trainer, tiny_model, tmp_path):
    spec = make_spec(A, warmup_steps=4)
    trainer.open_job(spec, str(tmp_path))
    batch = make_batch(1)
    result = trainer.train_step(batch)
    assert (result.commit.version, result.commit.step, result.commit.cursor) == (1, 1, batch.cursor)
    assert result.commit == last_commit(str(tmp_path))
    assert set(result.metrics) == {
        "loss", "entropy", "ratio_mean", "ratio_max", "clip_fraction", "clip_low_fraction", "clip_high_fraction",
        "importance_mean", "importance_max", "importance_bounded_fraction", "logprob_gap", "grad_norm", "learning_rate",
        "updates", "staleness_mean", "staleness_max", "tokens_trained", "train_tokens_per_second", "train_seconds",
    }  # fmt: skip
    assert all(math.isfinite(value) for value in result.metrics.values())
    assert result.metrics["ratio_mean"] == 1.0
    assert result.metrics["clip_fraction"] == 0.0
    assert result.metrics["learning_rate"] == pytest.approx(0.25e-2)
    assert result.metrics["tokens_trained"] == sum(
        len(episode.token_ids) for group in batch.groups for episode in group.trajectories[1:]
    )
    with torch.no_grad():
        expected = sequence_logprobs(load_peft(tiny_model, result.commit.path), batch.probe_ids)
    assert result.probe_logprobs == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "lora",
    [
        {"rank": 4, "alpha": 4},
        {"rank": 8, "alpha": 3},
        {"rank": 16, "alpha": 32, "use_rslora": True},
        {"rank": 1, "alpha": 0.5},
    ],
)
def test_the_export_loads_with_peft_at_the_same_scale(trainer, tiny_model, tmp_path, lora):
    spec = make_spec(A, lora=lora)
    trainer.open_job(spec, str(tmp_path))
    for step in (1, 2, 3):
        result = trainer.train_step(make_batch(step))
    with torch.no_grad():
        expected = sequence_logprobs(load_peft(tiny_model, result.commit.path), make_batch(3).probe_ids)
        base = sequence_logprobs(load_peft(tiny_model, tmp_path / "versions" / "0"), make_batch(3).probe_ids)
    assert result.probe_logprobs == pytest.approx(expected.tolist(), abs=1e-5)
    assert result.probe_logprobs != pytest.approx(base.tolist(), abs=1e-2)


def test_the_exported_config(trainer, tmp_path):
    spec = make_spec(A, lora={"rank": 4, "alpha": 10, "use_rslora": True})
    commit = trainer.open_job(spec, str(tmp_path))
    config = json.loads((Path(commit.path) / CONFIG_FILE).read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (4, 10, True)
    assert config["peft_type"] == "LORA" and config["task_type"] == "CAUSAL_LM"
    assert sorted(config["target_modules"]) == [
        "down_proj",
        "gate_proj",
        "k_proj",
        "o_proj",
        "q_proj",
        "up_proj",
        "v_proj",
    ]
    assert config["base_model_name_or_path"] == "tiny"  # the model's name, not a folder of this machine


def test_training_never_changes_the_base(make_trainer, tmp_path):
    trainer = make_trainer()
    before = trainer.base_digest()
    run_steps(trainer, make_spec(A, weight_decay=0.5), tmp_path, 3)
    assert trainer.base_digest() == before
    trainable = [name for name, parameter in trainer._model._model.named_parameters() if parameter.requires_grad]
    assert trainable == []  # adapters live outside the model


def test_jobs_that_alternate_train_as_if_alone_bit_for_bit(make_trainer, tmp_path):
    specs = [
        make_spec(A, lora={"rank": 4, "alpha": 8}, seed=1),
        make_spec(B, lora={"rank": 16, "alpha": 5, "use_rslora": True}, seed=2, learning_rate=3e-2),
        make_spec(C, lora={"rank": 1, "alpha": 64}, seed=3, weight_decay=0.3),
    ]
    alone = [run_steps(make_trainer(), spec, tmp_path / f"alone-{spec.job_id}", 4)[-1] for spec in specs]
    sizes = [Session(spec, make_trainer()._model).size_bytes for spec in specs]
    # one or two of three stay in memory: every turn evicts and reloads; where all have room none does
    for resident, room in ((1, 0), (2, sizes[0] + sizes[1]), (3, sum(sizes))):
        trainer = make_trainer(resident_bytes=room)
        for spec in specs:
            trainer.open_job(spec, str(tmp_path / f"{resident}-{spec.job_id}"))
        for step in range(1, 5):
            last = [trainer.train_step(make_batch(step, job_id=spec.job_id)).commit for spec in specs]
        assert [files_of(commit) for commit in last] == [files_of(commit) for commit in alone]
        assert len(trainer._resident) == resident


def test_a_resumed_job_goes_on_bit_for_bit(make_trainer, tmp_path):
    spec = make_spec(A, warmup_steps=3, weight_decay=0.1)
    uninterrupted = run_steps(make_trainer(), spec, tmp_path / "one", 6)
    for steps in (1, 2, 4, 6):
        resumed = run_steps(make_trainer(), spec, tmp_path / "two", steps)
        assert files_of(resumed[-1]) == files_of(uninterrupted[steps])
        assert resumed[-1].sha256 == uninterrupted[steps].sha256


def test_asking_again_for_a_committed_step_returns_the_same(make_trainer, tmp_path):
    spec = make_spec(A)
    trainer = make_trainer()
    run_steps(trainer, spec, tmp_path, 1)
    batch = make_batch(2)
    first = trainer.train_step(batch)
    assert trainer.train_step(batch) == first
    restarted = make_trainer()
    restarted.open_job(spec, str(tmp_path))
    assert restarted.train_step(batch) == first
    assert list_versions(str(tmp_path)) == [0, 1, 2]


def test_a_step_that_a_trainer_taken_for_lost_committed_meanwhile_is_not_made_again(make_trainer, tmp_path):
    spec = make_spec(A)
    lost, present = make_trainer(), make_trainer()
    run_steps(lost, spec, tmp_path, 1)
    present.open_job(spec, str(tmp_path))
    theirs = lost.train_step(make_batch(2))
    ours = present.train_step(make_batch(2))
    assert ours == theirs
    assert list_versions(str(tmp_path)) == [0, 1, 2]
    assert present.train_step(make_batch(3)).commit.version == 3


@pytest.mark.parametrize("step", [0, 1, 2, 4, 9])
def test_a_step_out_of_order_is_refused(trainer, tmp_path, step):
    run_steps(trainer, make_spec(A), tmp_path, 2)
    if step == 2:
        return  # the committed one: answered, not refused
    with pytest.raises(TrainingError, match="the next step of this job is 3"):
        trainer.train_step(make_batch(step))


def poisoned(batch: TrainBatch, kind: str) -> TrainBatch:
    episode = batch.groups[0].trajectories[1]
    if kind == "nan logprob":
        return with_trajectory(batch, logprobs=[math.nan, *episode.logprobs[1:]])
    if kind == "inf logprob":
        return with_trajectory(batch, logprobs=[math.inf, *episode.logprobs[1:]])
    if kind == "minus inf logprob":
        return with_trajectory(batch, logprobs=[-math.inf, *episode.logprobs[1:]])
    if kind == "nan advantage":
        return replace(batch, advantages=[[math.nan] * len(row) for row in batch.advantages])
    if kind == "huge advantage":  # finite, but the gradient overflows
        return replace(batch, advantages=[[3e38] * len(row) for row in batch.advantages])
    if kind == "token id":
        return with_trajectory(batch, token_ids=[10**6, *episode.token_ids[1:]])
    if kind == "negative token id":
        return with_trajectory(batch, token_ids=[-1, *episode.token_ids[1:]])
    if kind == "lengths":
        return with_trajectory(batch, logprobs=[*episode.logprobs, -1.0])
    if kind == "advantages":
        return replace(batch, advantages=batch.advantages[1:])
    if kind == "empty prompt":
        return replace(batch, groups=[replace(group, prompt_ids=[]) for group in batch.groups])
    assert kind == "foreign"
    return replace(batch, job_id=B)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan logprob", "not a finite number"),
        ("inf logprob", "not a finite number"),
        ("minus inf logprob", "not a finite number"),
        ("nan advantage", "not a finite number"),
        ("huge advantage", "nothing was applied"),
        ("token id", "outside the vocabulary"),
        ("negative token id", "outside the vocabulary"),
        ("lengths", "differ in length"),
        ("advantages", "one advantage for each trajectory"),
        ("empty prompt", "empty prompt"),
        ("foreign", "not open in this trainer"),
    ],
)
def test_a_poisoned_batch_leaves_the_job_as_it_was(trainer, make_trainer, tmp_path, kind, reason):
    spec = make_spec(A)
    run_steps(trainer, spec, tmp_path / "poisoned", 1)
    with pytest.raises(TrainingError, match=reason) as caught:
        trainer.train_step(poisoned(make_batch(2), kind))
    assert list_versions(str(tmp_path / "poisoned")) == [0, 1]
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  as Ray carries it
    assert isinstance(copy, TrainingError) and copy.reason == caught.value.reason
    # the lane goes on, with this job and others, as if nothing had been
    after = trainer.train_step(make_batch(2)).commit
    assert files_of(after) == files_of(run_steps(make_trainer(), spec, tmp_path / "clean", 2)[-1])


def test_a_failing_disk_leaves_the_job_as_it_was(trainer, make_trainer, tmp_path, monkeypatch):
    spec = make_spec(A)
    run_steps(trainer, spec, tmp_path / "full", 1)
    with monkeypatch.context() as patch:

        def full(*args: object, **kwargs: object) -> None:
            raise OSError("no space left on device")

        patch.setattr("engine.training.session.save_file", full)
        with pytest.raises(OSError, match="no space"):
            trainer.train_step(make_batch(2))
    after = trainer.train_step(make_batch(2)).commit
    assert files_of(after) == files_of(run_steps(make_trainer(), spec, tmp_path / "clean", 2)[-1])


def test_a_batch_without_signal_commits_with_a_finite_loss(trainer, tmp_path):
    trainer.open_job(make_spec(A), str(tmp_path))
    batch = make_batch(1)
    result = trainer.train_step(replace(batch, advantages=[[0.0] * len(row) for row in batch.advantages]))
    assert set(result.metrics) == {
        "loss", "grad_norm", "learning_rate", "updates", "staleness_mean", "staleness_max", "tokens_trained",
        "train_seconds",
    }  # fmt: skip
    assert result.metrics["loss"] == 0
    assert result.metrics["tokens_trained"] == 0
    assert result.commit.version == 1
    assert result.commit.sha256 == last_commit(str(tmp_path)).sha256


def test_the_end_of_turn_token_is_trained(trainer, tiny_model, tmp_path):
    """Reward only the episode's last token, the end of turn: its log-probability must rise."""
    end = 1
    batch = make_batch(1, groups=1, group_size=2)
    batch = with_trajectory(batch, token_ids=[9, 10, end], loss_mask=[True] * 3, logprobs=[-3.0] * 3)
    batch = replace(batch, advantages=[[0.0, 1.0]])
    commits = [trainer.open_job(make_spec(A), str(tmp_path)), trainer.train_step(batch).commit]
    ids = [*batch.groups[0].prompt_ids, 9, 10, end]
    with torch.no_grad():
        before, after = (sequence_logprobs(load_peft(tiny_model, commit.path), ids)[-1].item() for commit in commits)
    assert after > before + 0.01


def test_a_job_that_is_not_open_is_refused(trainer, tmp_path):
    trainer.open_job(make_spec(A), str(tmp_path))
    trainer.close_job(A)
    trainer.close_job(A)
    with pytest.raises(TrainingError, match="not open"):
        trainer.train_step(make_batch(1))
    assert trainer.open_job(make_spec(A), str(tmp_path)).version == 0


def test_a_folder_of_another_job_is_refused(trainer, tmp_path):
    trainer.open_job(make_spec(A), str(tmp_path))
    with pytest.raises(TrainingError, match="holds job a"):
        trainer.open_job(make_spec(B), str(tmp_path))
    with pytest.raises(TrainingError, match="rank 8"):
        trainer.open_job(make_spec(A, lora={"rank": 8, "alpha": 8}), str(tmp_path))


def test_a_damaged_store_is_a_plain_error(trainer, tmp_path):
    commit = run_steps(trainer, make_spec(A), tmp_path, 1)[-1]
    trainer.close_job(A)
    path = Path(commit.path) / OPTIMIZER_FILE
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError):
        last_commit(str(tmp_path))
    with pytest.raises(TrainingError, match="damaged"):
        trainer.open_job(make_spec(A), str(tmp_path))
