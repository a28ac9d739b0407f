"""Several jobs in one turn of the trainer: each job's update is what it would be alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.store import ADAPTER_FILE, OPTIMIZER_FILE, list_versions
from engine.training import update
from engine.training.errors import TrainingError
from engine.training.lora import Adapter
from engine.training.objective import Part
from engine.training.packing import Pack, Segment
from engine.training.passes import PassRunner
from tests.engine.training.factory import make_batch, make_spec
from tests.engine.training.test_trainer import A, B, C, files_of, poisoned, run_steps

D = "d" * 32


def different_jobs():
    rate = {"learning_rate": 1e-3}
    few = {"rank": 2, "target_modules": ["q_proj", "down_proj"]}
    return [
        make_spec(A, lora={"rank": 4, "alpha": 8}, seed=1, **rate),
        make_spec(B, lora={"rank": 16, "alpha": 5, "use_rslora": True}, seed=2, learning_rate=2e-3),
        make_spec(C, lora=few, seed=3, kl_coefficient=0.2, epochs=2, **rate),
        make_spec(D, seed=4, algorithm="gspo", minibatches=2, entropy_coefficient=0.01, **rate),
    ]


def batch_for(job: str, step: int):
    return make_batch(step, seed=int(job[0], 16) * 100 + step, job_id=job, groups=2 + int(job[0], 16) % 3)


def weights(commit) -> dict[str, torch.Tensor]:
    return load_file(Path(commit.path) / ADAPTER_FILE)


def assert_same_gradients(commit, other) -> None:
    """To 1e-5 of the largest: Adam's moving means of them."""
    means, expected = (load_file(Path(one.path) / OPTIMIZER_FILE) for one in (commit, other))
    names = [name for name in expected if name.startswith("exp_avg.")]
    largest = max(float(expected[name].abs().max()) for name in names)
    assert largest > 0
    for name in names:
        torch.testing.assert_close(means[name], expected[name], rtol=0, atol=1e-5 * largest)


def train_together(trainer, specs, folder, steps, batch_of=batch_for):
    """The last commits."""
    for spec in specs:
        trainer.open_job(spec, str(folder / spec.job_id))
    for step in range(1, steps + 1):
        assert trainer.update([batch_of(spec.job_id, step) for spec in specs]) == [None] * len(specs)
        results = [trainer.commit(spec.job_id, step) for spec in specs]
    return results


@pytest.mark.parametrize(("threads", "token_budget"), [(1, 2048), (2, 2048), (4, 512), (2, 256)])
def test_jobs_that_share_turns_train_as_if_alone(make_trainer, tmp_path, threads, token_budget):
    specs = different_jobs()
    together = train_together(make_trainer(threads=threads, token_budget=token_budget), specs, tmp_path / "together", 3)
    for spec, result in zip(specs, together, strict=True):
        trainer = make_trainer()
        trainer.open_job(spec, str(tmp_path / spec.job_id))
        for step in (1, 2, 3):
            alone = trainer.train_step(batch_for(spec.job_id, step))
        found, expected = weights(result.commit), weights(alone.commit)
        assert max(float(tensor.abs().max()) for name, tensor in expected.items() if "lora_B" in name) > 1e-3
        assert_same_gradients(result.commit, alone.commit)
        # Adam makes a whole step even of a gradient of next to nothing, whose sign is rounding's.
        apart = sum(int(((found[name] - tensor).abs() > 1e-5).sum()) for name, tensor in expected.items())
        assert apart <= sum(tensor.numel() for tensor in expected.values()) / 1000
        for name, value in alone.metrics.items():
            if "seconds" not in name and "per_second" not in name:
                assert result.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
        assert result.probe_logprobs == pytest.approx(alone.probe_logprobs, abs=1e-5)


def test_the_same_turn_gives_the_same_bits(make_trainer, tmp_path):
    first, second = (
        train_together(make_trainer(threads=2, token_budget=512), different_jobs(), tmp_path / name, 2)
        for name in ("first", "second")
    )
    assert [files_of(one.commit) for one in first] == [files_of(two.commit) for two in second]


@pytest.mark.parametrize("kind", ["huge advantage", "token id", "nan logprob"])
def test_a_poisoned_batch_harms_no_other_job_of_its_turn(make_trainer, tmp_path, kind):
    specs = [make_spec(A), make_spec(B, seed=5), make_spec(C, seed=6)]
    trainer = make_trainer(threads=2, token_budget=512)
    for spec in specs:
        trainer.open_job(spec, str(tmp_path / spec.job_id))
    batches = [make_batch(1, job_id=spec.job_id, seed=index) for index, spec in enumerate(specs)]
    first, error, last = trainer.update([batches[0], poisoned(batches[1], kind), batches[2]])
    assert first is None and last is None and isinstance(error, TrainingError)
    for index in (0, 2):
        result = trainer.commit(specs[index].job_id, 1)
        alone = make_trainer()
        alone.open_job(specs[index], str(tmp_path / f"alone-{index}"))
        assert_same_gradients(result.commit, alone.train_step(batches[index]).commit)
    assert list_versions(str(tmp_path / B)) == [0]
    assert trainer.train_step(batches[1]).commit.version == 1  # as if nothing had been


def test_a_pass_that_breaks_is_made_again_job_by_job(make_trainer, tmp_path, monkeypatch):
    """What one job's batch breaks, as an architecture's limit does, ends that job's step alone."""
    specs = [make_spec(A), make_spec(B, seed=5)]
    trainer = make_trainer()
    for spec in specs:
        trainer.open_job(spec, str(tmp_path / spec.job_id))
    batches = [make_batch(1, job_id=spec.job_id) for spec in specs]
    marked = batches[1].groups[0].prompt_ids
    real = update.backward_pass

    def breaks(model, parts):
        if any(part.pack.input_ids[: len(marked)] == marked and part.adapter is not None for part in parts):
            raise TrainingError("too long for this model")
        return real(model, parts)

    batches[0] = make_batch(1, job_id=A, seed=77)
    monkeypatch.setattr(update, "backward_pass", breaks)
    first, second = trainer.update(batches)
    assert first is None and str(second) == "too long for this model"
    expected = make_trainer()
    expected.open_job(specs[0], str(tmp_path / "alone"))
    monkeypatch.setattr(update, "backward_pass", real)
    assert files_of(trainer.commit(A, 1).commit) == files_of(expected.train_step(batches[0]).commit)


def test_a_committed_step_is_answered_beside_a_new_one(make_trainer, tmp_path):
    trainer = make_trainer()
    run_steps(trainer, make_spec(A), tmp_path / A, 1)
    before = trainer.train_step(make_batch(1))
    trainer.open_job(make_spec(B), str(tmp_path / B))
    assert trainer.update([make_batch(1), make_batch(1, job_id=B)]) == [None, None]
    again = trainer.commit(A, 1)
    assert (again.commit, again.metrics) == (before.commit, before.metrics)
    assert again.probe_logprobs == pytest.approx(before.probe_logprobs, abs=1e-5)  # beside another job's
    assert trainer.commit(B, 1).commit.version == 1


def part(tokens: int, adapter: Adapter | None = None) -> Part:
    spec = make_spec()
    pack = Pack([0] * tokens, list(range(tokens)), [Segment(tokens, ())])
    return Part(adapter, pack, spec.training, 1.0)


@pytest.mark.parametrize(
    ("threads", "sizes", "lanes"),
    [
        (2, [300, 300], 2),
        (2, [60, 60], 1),  # too small for two
        (2, [1000], 1),
        (1, [300, 300, 300], 1),
        (4, [200] * 8, 4),
        (2, [500, 100, 100, 100, 100, 100], 2),
    ],
)
def test_parts_are_divided_evenly_and_results_come_in_order(threads, sizes, lanes):
    runner = PassRunner(threads, 1024, torch.device("cpu"))
    parts = [part(size) for size in sizes]
    passes = []

    def note(shared):
        passes.append([one.tokens for one in shared])
        return [id(one.pack) for one in shared]

    assert runner.run(note, parts) == [id(one.pack) for one in parts]
    limit = 1024 // (1 if threads == 1 else min(threads, 1024 // 128))
    assert all(sum(one) <= limit or len(one) == 1 for one in passes)
    divided = runner._divide(parts)
    loads = [sum(sizes[index] for shared in lane for index in shared) for lane in divided]
    assert len(loads) == lanes and max(loads) - min(loads) <= max(sizes) / 2


def test_on_an_accelerator_there_is_one_pass_at_a_time():
    runner = PassRunner(16, 1024, torch.device("cuda"))
    assert runner._divide([part(500), part(500), part(100)]) == [[[0, 1], [2]]]


def test_epochs_and_minibatches_count_alike_in_a_shared_turn(make_trainer, tmp_path):
    specs = different_jobs()
    results = train_together(make_trainer(threads=2), specs, tmp_path, 1)
    assert [result.metrics["updates"] for result in results] == [1, 1, 2, 2]
    assert all(result.turn_seconds >= result.metrics["train_seconds"] > 0 for result in results)
