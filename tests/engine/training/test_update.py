"""A step's updates under every algorithm and option, against a plain implementation on PEFT."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file

from engine.spec import Algorithm, JobSpec
from engine.store import ADAPTER_FILE, list_versions
from engine.training import update
from engine.training.trainer import Trainer
from engine.types import Group, StepResult, TrainBatch
from tests.engine.training.factory import make_batch, make_spec
from tests.engine.training.reference import load_peft, plain_updates, sequence_logprobs

A = "a" * 32


@pytest.fixture(scope="module")
def trainer(make_trainer) -> Trainer:
    return make_trainer(token_budget=40)


@pytest.fixture
def updates(monkeypatch) -> list[update.Update]:
    """The optimizer updates of the steps the test trains."""
    made: list[update.Update] = []
    summarise = update.summarise

    def keep(of_step: list[update.Update]) -> dict[str, float]:
        made.extend(of_step)
        return summarise(of_step)

    monkeypatch.setattr(update, "summarise", keep)
    return made


def train(trainer: Trainer, spec: JobSpec, batch: TrainBatch, job_dir: Path) -> StepResult:
    trainer.open_job(spec, str(job_dir))
    return trainer.train_step(batch)


def improbable(batch: TrainBatch) -> TrainBatch:
    """The batch as if its tokens had been next to impossible for the sampler."""
    groups = [
        replace(group, trajectories=[replace(t, logprobs=[-60.0] * len(t.logprobs)) for t in group.trajectories])
        for group in batch.groups
    ]
    return replace(batch, groups=groups)


def with_logprobs(batch: TrainBatch, model: torch.nn.Module) -> TrainBatch:
    """The batch as if the model had sampled it."""
    groups = []
    for group in batch.groups:
        trajectories = []
        for episode in group.trajectories:
            with torch.no_grad():
                logprobs = sequence_logprobs(model, group.prompt_ids + episode.token_ids)
            own = logprobs[len(group.prompt_ids) - 1 :].tolist()
            masked = [p if sampled else 0.0 for p, sampled in zip(own, episode.loss_mask, strict=True)]
            trajectories.append(replace(episode, logprobs=masked))
        groups.append(replace(group, trajectories=trajectories))
    return replace(batch, groups=groups)


def check_against_reference(
    trainer: Trainer, updates: list[update.Update], tiny_model: Path, job_dir: Path, **settings: Any
) -> StepResult:
    """Train one step both ways; every update's loss and gradient norm, and the weights, must agree."""
    spec = make_spec(A, temperature=0.8, max_grad_norm=0.5, **settings)
    batch = make_batch(1, groups=4, environment_tokens=True)
    start = trainer.open_job(spec, str(job_dir))
    model = load_peft(tiny_model, start.path, trainable=True)
    if spec.training.algorithm == "gspo":
        batch = improbable(batch)  # importance weights are all 1, the cap
    result = trainer.train_step(batch)
    expected = plain_updates(model, batch, spec)
    assert len(updates) == len(expected) == result.metrics["updates"]
    for made, (loss, norm) in zip(updates, expected, strict=True):
        assert made.loss == pytest.approx(loss, rel=1e-3, abs=1e-5)
        assert made.grad_norm == pytest.approx(norm, rel=1e-3)
    trained = load_file(Path(result.commit.path) / ADAPTER_FILE)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            difference = (trained[name.replace(".default", "")] - parameter.data).abs()
            assert difference.mean() < 1e-2 * spec.training.learning_rate
    return result


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_every_algorithm_over_several_updates(trainer, updates, tiny_model, tmp_path, algorithm):
    options = {"importance_cap": 1.0} if algorithm == "gspo" else {}
    if algorithm == "cispo":
        options = {"ratio_cap": 1.05}
    result = check_against_reference(
        trainer, updates, tiny_model, tmp_path, algorithm=algorithm, epochs=2, minibatches=2, adam_beta2=0.95, **options
    )
    # the first update is at ratio 1; then the policy has moved, and clipping has an effect
    assert torch.cat([result.loss.policy.ratio for result in updates[0].results]).unique().tolist() == [1.0]
    assert result.metrics["ratio_max"] > 1.05
    assert result.metrics["clip_fraction"] > 0
    assert result.metrics["clip_fraction"] == pytest.approx(
        result.metrics["clip_low_fraction"] + result.metrics["clip_high_fraction"]
    )


@pytest.mark.parametrize(
    "options",
    [
        {"kl_coefficient": 0.3, "kl_estimator": "k1"},
        {"kl_coefficient": 0.3, "kl_estimator": "k2"},
        {"kl_coefficient": 0.3, "kl_estimator": "k3", "algorithm": "dr_grpo"},
        {"entropy_coefficient": 0.1},
        {"entropy_coefficient": 0.1, "kl_coefficient": 0.1, "importance": "mask", "importance_floor": 0.5},
    ],
)
def test_terms_beside_the_advantage(trainer, updates, tiny_model, tmp_path, options):
    result = check_against_reference(trainer, updates, tiny_model, tmp_path, epochs=3, weight_decay=0.1, **options)
    assert ("kl" in result.metrics) == ("kl_coefficient" in options)
    if "importance_floor" in options:
        assert 0 < result.metrics["importance_bounded_fraction"] < 1


def test_neither_budget_nor_packing_changes_a_sequence_level_update(make_trainer, tmp_path):
    spec = make_spec(A, algorithm="gspo", epochs=2)
    batch = make_batch(1, groups=4)
    results = [
        train(make_trainer(token_budget=budget), spec, batch, tmp_path / str(budget)) for budget in (1, 30, 4096)
    ]
    for result in results[1:]:
        for name in ("loss", "grad_norm", "ratio_max", "entropy"):
            assert result.metrics[name] == pytest.approx(results[0].metrics[name], rel=1e-4, abs=1e-6)


def test_without_kl_the_base_is_not_computed(trainer, tmp_path, monkeypatch):
    passes = []
    monkeypatch.setattr(update, "pass_logprobs", lambda *args: passes.append(args))
    train(trainer, make_spec(A), make_batch(1), tmp_path)
    assert passes == []


def test_with_kl_a_trajectory_of_advantage_zero_is_pulled_to_the_base(trainer, tiny_model, tmp_path):
    """Moved away by one step, then trained on a batch without signal: only KL pulls."""
    batch = make_batch(1, groups=2)
    silent = replace(make_batch(1, groups=2), advantages=[[0.0] * 4] * 2, step=2)
    divergence = {}
    for coefficient in (0.0, 0.5):
        spec = make_spec(A, kl_coefficient=coefficient, importance_cap=1e6)
        first = train(trainer, spec, batch, tmp_path / str(coefficient))
        # as the policy itself would have drawn it, so that the importance weight is 1
        second = trainer.train_step(with_logprobs(silent, load_peft(tiny_model, first.commit.path)))
        divergence[coefficient] = second.metrics.get("kl")
        trained = sum(len(t.token_ids) for group in batch.groups for t in group.trajectories)
        assert second.metrics["tokens_trained"] == (trained if coefficient else 0)
        assert (second.metrics["grad_norm"] > 0) == bool(coefficient)
        if coefficient:
            third = trainer.train_step(
                replace(with_logprobs(silent, load_peft(tiny_model, second.commit.path)), step=3)
            )
            assert 0 < third.metrics["kl"] < second.metrics["kl"]
    assert divergence[0.0] is None


def test_kl_to_the_base_is_zero_before_the_first_update(trainer, tmp_path):
    result = train(trainer, make_spec(A, kl_coefficient=0.1), make_batch(1), tmp_path)
    assert result.metrics["kl"] == 0


def test_a_stale_batch_is_corrected_once(trainer, tiny_model, tmp_path):
    """Drawn by version 0 and trained at version 3: the policy ratio is 1, the weight is pi_3 / pi_0."""
    spec = make_spec(A, importance_cap=5.0, learning_rate=3e-3)
    commits = [trainer.open_job(spec, str(tmp_path))]
    for step in (1, 2, 3):
        commits.append(trainer.train_step(make_batch(step)).commit)
    drawn_by, trained = load_peft(tiny_model, commits[0].path), load_peft(tiny_model, commits[3].path, trainable=True)
    batch = with_logprobs(make_batch(4), drawn_by)
    result = trainer.train_step(batch)

    # Importance sampling by hand: -sum(A * min(pi_3 / pi_0, 5) * log pi) / tokens
    total, weights, count = torch.zeros(()), [], 0
    for group, advantages in zip(batch.groups, batch.advantages, strict=True):
        for episode, advantage in zip(group.trajectories, advantages, strict=True):
            count += len(episode.token_ids)
            if advantage:
                logprobs = sequence_logprobs(trained, group.prompt_ids + episode.token_ids)[len(group.prompt_ids) - 1 :]
                weight = (logprobs.detach() - torch.tensor(episode.logprobs)).exp().clamp(max=5)
                weights.append(weight)
                total = total - (advantage * weight * logprobs).sum()
    (total / count).backward()
    norm = torch.cat([p.grad.flatten() for p in trained.parameters() if p.requires_grad]).norm()
    assert torch.cat(weights).std() > 0.01, "the policy should have moved"
    assert result.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    assert result.metrics["importance_mean"] == pytest.approx(torch.cat(weights).mean().item(), rel=1e-4)
    assert result.metrics["ratio_mean"] == result.metrics["ratio_max"] == 1
    assert result.metrics["clip_fraction"] == 0
    assert result.metrics["staleness_mean"] == result.metrics["staleness_max"] == 3


def test_versions_may_be_mixed_within_a_batch(trainer, tmp_path):
    """Each trajectory is weighted by the policy that drew it, so its batch mates' age does not matter to it."""
    batch = make_batch(1, groups=2, group_size=3)
    older = replace(batch.groups[1].trajectories[1], adapter_version=None)
    mixed = replace(batch, groups=[batch.groups[0], replace(batch.groups[1], trajectories=[
        batch.groups[1].trajectories[0], older, batch.groups[1].trajectories[2]])])  # fmt: skip
    result = train(trainer, make_spec(A), mixed, tmp_path / "mixed")
    plain = train(trainer, make_spec(A), batch, tmp_path / "plain")
    assert result.commit.sha256 == plain.commit.sha256


def test_several_updates_are_one_commit(trainer, tmp_path):
    result = train(trainer, make_spec(A, epochs=3, minibatches=2), make_batch(1), tmp_path)
    assert result.metrics["updates"] == 6
    assert list_versions(str(tmp_path)) == [0, 1]


def test_fewer_groups_than_minibatches(trainer, tmp_path):
    """A batch from which stale groups were dropped."""
    result = train(trainer, make_spec(A, minibatches=8), make_batch(1, groups=3), tmp_path)
    assert result.metrics["updates"] == 3


def test_a_resumed_job_with_every_option_goes_on_bit_for_bit(make_trainer, tmp_path):
    spec = make_spec(
        A, algorithm="gspo", epochs=2, minibatches=2, schedule="cosine", warmup_steps=2, kl_coefficient=0.1,
        adam_beta1=0.8, entropy_coefficient=0.01, lora={"rank": 4, "alpha": 8, "target_modules": ["v_proj", "up_proj"]},
    )  # fmt: skip
    one = make_trainer()
    one.open_job(spec, str(tmp_path / "one"))
    expected = [one.train_step(make_batch(step)).commit.sha256 for step in (1, 2, 3)]
    for step in (1, 2, 3):
        two = make_trainer()
        two.open_job(spec, str(tmp_path / "two"))
        assert two.train_step(make_batch(step)).commit.sha256 == expected[step - 1]


# --- long batches ----------------------------------------------------------------------------------------------------


def long_batch(length: int) -> TrainBatch:
    """One group of two, one of them ``length`` tokens long."""
    batch = make_batch(1, groups=1, group_size=3)
    group: Group = batch.groups[0]
    long = replace(
        group.trajectories[1],
        token_ids=[index % 299 for index in range(length)],
        loss_mask=[True] * length,
        logprobs=[-5.0] * length,
    )
    return replace(batch, groups=[replace(group, trajectories=[group.trajectories[0], long, group.trajectories[2]])])


def test_an_episode_longer_than_the_budget_is_checkpointed_and_changes_nothing(make_trainer, tmp_path):
    batch = long_batch(180)
    saved: dict[int, int] = {}
    results = {}
    for budget in (64, 4096):
        trainer = make_trainer(token_budget=budget)
        sizes: list[int] = []

        def keep(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        trainer.open_job(make_spec(A, epochs=2), str(tmp_path / str(budget)))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            results[budget] = trainer.train_step(batch)
        saved[budget] = sum(sizes)
    assert saved[64] < saved[4096] / 3, "activations of the long episode were kept"
    for name in ("loss", "grad_norm", "entropy", "ratio_max"):
        assert results[64].metrics[name] == pytest.approx(results[4096].metrics[name], rel=1e-4)


def test_a_very_long_episode_needs_no_mask(make_trainer, tmp_path, monkeypatch):
    batch = long_batch(180)
    expected = train(make_trainer(token_budget=64), make_spec(A), batch, tmp_path / "masked")
    monkeypatch.setattr("engine.training.attention.PLAIN_CAUSAL_LENGTH", 0)
    result = train(make_trainer(token_budget=64), make_spec(A), batch, tmp_path / "causal")
    for name in ("loss", "grad_norm", "entropy"):
        assert result.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4)
