"""Layout of packs; and that packing changes no number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.spec import LoraSettings
from engine.training import attention, objective
from engine.training.attention import segment_mask
from engine.training.lora import Adapter, export_adapter
from engine.training.model import BaseModel
from engine.training.objective import Part
from engine.training.packing import Pack, Segment, build_packs, count_model_tokens
from engine.types import Group, Score, TrainBatch, Trajectory
from tests.engine.training.factory import make_batch, make_spec
from tests.engine.training.reference import batch_loss, load_peft, sequence_logprobs


def trajectory(ids: list[int], mask: list[bool] | None = None) -> Trajectory:
    mask = mask or [True] * len(ids)
    return Trajectory(ids, mask, [-i / 10 for i in ids], 0, "", False, Score(0.0))


def batch_of(groups: list[Group], advantages: list[list[float]]) -> TrainBatch:
    return TrainBatch("a" * 32, 1, 0, groups, advantages, [])


def test_layout_of_a_group():
    group = Group(0, [1, 2, 3], "", "", [trajectory([4, 5, 6]), trajectory([7]), trajectory([8, 9])])
    (pack,) = build_packs(batch_of([group], [[0.5, -1.0, 2.0]]), 100)
    # the last token of an episode predicts nothing, so it is a target only
    assert pack.input_ids == [1, 2, 3, 4, 5, 8]
    assert pack.position_ids == [0, 1, 2, 3, 4, 3]
    assert pack.segments == [Segment(3, (2, 0, 1))]
    assert pack.sources == [2, 3, 4, 2, 2, 5]
    assert pack.targets == [4, 5, 6, 7, 8, 9]
    assert pack.advantages == [0.5, 0.5, 0.5, -1.0, 2.0, 2.0]
    assert pack.sampler_logprobs == [-0.4, -0.5, -0.6, -0.7, -0.8, -0.9]


def test_environment_tokens_are_read_and_not_trained():
    # two turns: the environment's 6 and 7 lie between; a trailing environment token is not even read
    turns = trajectory([4, 5, 6, 7, 8, 9], [True, True, False, False, True, False])
    (pack,) = build_packs(batch_of([Group(0, [1], "", "", [turns])], [[1.0]]), 100)
    assert pack.input_ids == [1, 4, 5, 6, 7]
    assert pack.targets == [4, 5, 8]
    assert pack.sources == [0, 1, 4]


def test_advantage_zero_is_left_out_but_counted():
    group = Group(0, [1, 2], "", "", [trajectory([4, 5]), trajectory([6, 7, 8], [True, False, True])])
    batch = batch_of([group, replace(group, row=1)], [[0.0, 1.0], [0.0, 0.0]])
    (pack,) = build_packs(batch, 100)
    assert pack.targets == [6, 8]
    assert count_model_tokens(batch) == 8


def test_budget_splits_groups_and_repeats_the_prompt():
    group = Group(0, [1, 2], "", "", [trajectory([4, 5, 6]), trajectory([7, 8, 9]), trajectory([10, 11, 12])])
    packs = build_packs(batch_of([group], [[1.0, 1.0, 1.0]]), 6)
    assert [pack.input_ids for pack in packs] == [[1, 2, 4, 5, 7, 8], [1, 2, 10, 11]]
    packs = build_packs(batch_of([group], [[1.0, 1.0, 1.0]]), 1)
    assert [pack.targets for pack in packs] == [[4, 5, 6], [7, 8, 9], [10, 11, 12]]


def test_every_sampled_token_is_trained_exactly_once():
    batch = make_batch(1, groups=5, environment_tokens=True)
    for budget in (1, 20, 50, 1000):
        packs = build_packs(batch, budget)
        assert all(len(pack.input_ids) <= budget or len(pack.segments[0].branch_lengths) == 1 for pack in packs)
        expected = [
            token
            for group in batch.groups
            for episode in group.trajectories[1:]
            for token, sampled in zip(episode.token_ids, episode.loss_mask, strict=True)
            if sampled
        ]
        assert [target for pack in packs for target in pack.targets] == expected


def test_mask_of_a_segment():
    mask = segment_mask(Segment(2, (2, 1)), dtype=torch.float32, device=torch.device("cpu"))
    assert (mask.mask[0, 0] == 0).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


@pytest.fixture(scope="module")
def base(tiny_model):
    return BaseModel(str(tiny_model), dtype="float32", device="cpu")


def random_adapter(base: BaseModel, settings: LoraSettings) -> Adapter:
    adapter = Adapter(base.layers, settings, base.device)
    generator = torch.Generator().manual_seed(1)
    adapter.flat.data.copy_(torch.randn(adapter.flat.shape, generator=generator) * 0.1)
    return adapter


def run_packs(base: BaseModel, adapter: Adapter, batch: TrainBatch, budget: int, temperature: float):
    """(gradient of the batch's loss by parameter, log-probabilities of the trained tokens, loss)"""
    assert adapter.flat.grad is not None
    adapter.flat.grad.zero_()
    settings = make_spec().training
    results = [
        result
        for pack in build_packs(batch, budget)
        for result in objective.backward_pass(base, [Part(adapter, pack, settings, temperature)])[0]
    ]
    tokens = count_model_tokens(batch)
    gradient = {name: view.clone() / tokens for name, view in adapter.views(adapter.flat.grad).items()}
    loss = torch.cat([result.total for result in results]).sum() / tokens
    return gradient, torch.cat([result.tokens.logprobs.detach() for result in results]), loss


LORAS = [
    LoraSettings(rank=4, alpha=4),
    LoraSettings(rank=4, alpha=10),
    LoraSettings(rank=9, alpha=5, use_rslora=True),
]


@pytest.mark.parametrize("lora", LORAS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equal_to_peft_one_sequence_at_a_time(base, tiny_model, tmp_path, lora, temperature):
    batch = make_batch(1, environment_tokens=True)
    adapter = random_adapter(base, lora)
    gradient, logprobs, loss = run_packs(base, adapter, batch, 64, temperature)

    export_adapter(tmp_path, adapter, lora, make_spec().base_model)
    model = load_peft(tiny_model, tmp_path, trainable=True)
    expected_loss = batch_loss(model, batch, temperature=temperature, cap=2.0)
    expected_loss.backward()
    assert loss.item() == pytest.approx(expected_loss.item(), abs=1e-6)

    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trainable) == len(gradient)
    for name, value in gradient.items():
        peft_name = f"base_model.model.{name}".replace(".weight", ".default.weight")
        torch.testing.assert_close(value, trainable[peft_name].grad, rtol=1e-4, atol=1e-5)

    position = 0
    for group in batch.groups:
        for episode in group.trajectories[1:]:
            expected = sequence_logprobs(model, group.prompt_ids + episode.token_ids, temperature)
            expected = expected[len(group.prompt_ids) - 1 :][torch.tensor(episode.loss_mask)]
            torch.testing.assert_close(logprobs[position : position + len(expected)], expected, rtol=1e-5, atol=1e-5)
            position += len(expected)
    assert position == len(logprobs)


@pytest.mark.parametrize("budget", [1, 25, 60, 4096])
@pytest.mark.parametrize("chunk_logits", [512, 5 * 512, 2**22])
def test_budget_and_chunks_change_nothing(base, monkeypatch, budget, chunk_logits):
    batch = make_batch(2, groups=4)
    adapter = random_adapter(base, LORAS[1])
    expected_gradient, expected_logprobs, _ = run_packs(base, adapter, batch, 200, 1.0)
    monkeypatch.setitem(objective.CHUNK_LOGITS, "cpu", chunk_logits)
    gradient, logprobs, _ = run_packs(base, adapter, batch, budget, 1.0)
    torch.testing.assert_close(logprobs, expected_logprobs, rtol=1e-5, atol=1e-5)
    for name, value in gradient.items():
        torch.testing.assert_close(value, expected_gradient[name], rtol=1e-4, atol=1e-5)


def test_batch_mates_change_no_logprob(base):
    batch = make_batch(3, groups=4)
    adapter = random_adapter(base, LORAS[1])
    _, together, _ = run_packs(base, adapter, batch, 4096, 1.0)
    alone = [
        run_packs(base, adapter, replace(batch, groups=[group], advantages=[advantages]), 4096, 1.0)[1]
        for group, advantages in zip(batch.groups, batch.advantages, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(5, 5, 5, 5), (9, 1, 4), (2, 7)])
def test_branches_as_a_batch_come_to_the_same_end(base, monkeypatch, lengths):
    batch = batch_of(
        [
            Group(
                0,
                [1, 2, 3, 4],
                "",
                "",
                [trajectory([5 + i + n for n in range(size)]) for i, size in enumerate(lengths)],
            )
        ],
        [[1.0 - 0.7 * i for i in range(len(lengths))]],
    )
    adapter = random_adapter(base, LORAS[1])
    monkeypatch.setitem(attention.BATCHING_COST, "cpu", 10**9)
    gradient, logprobs, _ = run_packs(base, adapter, batch, 200, 1.0)
    monkeypatch.setitem(attention.BATCHING_COST, "cpu", -(10**9))
    assert segment_mask(Segment(4, lengths), dtype=torch.float32, device=base.device).branches is not None
    batched_gradient, batched, _ = run_packs(base, adapter, batch, 200, 1.0)
    torch.testing.assert_close(batched, logprobs, rtol=1e-5, atol=1e-5)
    for name, value in batched_gradient.items():
        torch.testing.assert_close(value, gradient[name], rtol=1e-4, atol=1e-6)


def test_long_segments_take_the_fused_kernel_to_the_same_end(base, monkeypatch):
    batch = make_batch(4)
    adapter = random_adapter(base, LORAS[1])
    gradient, logprobs, _ = run_packs(base, adapter, batch, 200, 1.0)
    monkeypatch.setattr("engine.training.attention.CPU_PLAIN_LENGTH", 0)
    fused_gradient, fused, _ = run_packs(base, adapter, batch, 200, 1.0)
    torch.testing.assert_close(fused, logprobs, rtol=1e-5, atol=1e-5)
    for name, value in fused_gradient.items():
        torch.testing.assert_close(value, gradient[name], rtol=1e-4, atol=1e-5)


def test_entropy_is_the_policys_at_the_sampling_temperature(base, tiny_model):
    group = Group(0, [1, 2, 3], "", "", [trajectory([4])])
    (pack,) = build_packs(batch_of([group], [[1.0]]), 10)
    with torch.no_grad():
        logits = base.output(base.hidden_states([(None, Pack([1, 2, 3], [0, 1, 2], [Segment(3, ())]))]))[-1] / 0.5
    expected = torch.distributions.Categorical(logits=logits).entropy()
    adapter = random_adapter(base, LORAS[0])
    adapter.scale = 0.0  # the base's policy, with a graph to run backward through
    ((result,),) = objective.backward_pass(base, [Part(adapter, pack, make_spec().training, 0.5)])
    assert result.entropy.item() == pytest.approx(expected.item(), rel=1e-5)
