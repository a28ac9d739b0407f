"""The rollout worker on the real vLLM, against PEFT in fp32."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.rollout.adapter_files import AdapterError
from engine.rollout.worker import RolloutWorker
from engine.types import BASE, AdapterRef, Policy, RolloutRequest
from tests.engine.rollout.conftest import MAX_MODEL_LEN, MAX_RANK, SLOTS, MakeAdapter, Reference

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

END = 1  # <|im_end|>


def prompt(seed: int, length: int = 40) -> list[int]:
    return random.Random(seed).choices(range(2, 450), k=length)


def request(
    policy: Policy, prompt_ids: list[int], *, n: int = 1, max_tokens: int = 8, temperature: float = 0.0, seed: int = 0
) -> RolloutRequest:
    return RolloutRequest(policy, prompt_ids, n, max_tokens, temperature, seed)


async def resident(worker: RolloutWorker) -> list[str]:
    return (await worker.stats())["adapters_resident"]


async def in_use(worker: RolloutWorker, ref: AdapterRef) -> None:
    """Return once requests of ``ref`` are in flight in the engine."""
    stats: dict[str, Any] = {"adapters_in_use": {}}
    while not (ref.name in stats["adapters_in_use"] and stats["running"]):
        stats = await worker.stats()


# --- right numbers ---------------------------------------------------------------------------------------------------


async def test_mixed_batch_with_every_slot_full_equals_peft(
    worker: RolloutWorker, make_adapter: MakeAdapter, reference: Reference
) -> None:
    policies: list[Policy] = [
        make_adapter(rank=16, alpha=8),
        make_adapter(rank=4, alpha=24, use_rslora=True),
        make_adapter(rank=8, alpha=16, modules=["q_proj", "down_proj"]),
        BASE,
    ]
    assert len(policies) == SLOTS + 1
    requests = [
        request(policy, prompt(10 * index + copy, length=20 + 7 * index + copy), n=2, max_tokens=20, temperature=0.7)
        for index, policy in enumerate(policies)
        for copy in range(2)
    ]
    answers = await asyncio.gather(*map(worker.generate, requests))
    for sent, completions in zip(requests, answers, strict=True):
        for completion in completions:
            assert completion.policy == sent.policy.name
            expected = reference.logprobs(sent.policy, sent.prompt_ids, completion.token_ids, sent.temperature)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
    # The test can fail: under another policy the same tokens have other log-probabilities.
    first = answers[0][0]
    other = reference.logprobs(BASE, requests[0].prompt_ids, first.token_ids, requests[0].temperature)
    assert (torch.tensor(first.logprobs) - other).abs().max() > 0.1


async def test_score_is_the_log_probability_at_temperature_1(
    worker: RolloutWorker, make_adapter: MakeAdapter, reference: Reference
) -> None:
    adapter = make_adapter()
    token_ids = prompt(3, length=100)
    await worker.generate(request(adapter, token_ids))  # leaves the prompt in the prefix cache
    for policy in (adapter, BASE):
        scores = await worker.score(policy, token_ids)
        expected = reference.logprobs(policy, token_ids[:1], token_ids[1:], 1.0)
        torch.testing.assert_close(torch.tensor(scores), expected, atol=1e-4, rtol=0)


async def test_greedy_follows_each_new_version(
    worker: RolloutWorker, make_adapter: MakeAdapter, reference: Reference
) -> None:
    shared_prompt = prompt(4, length=100)  # several whole cache blocks
    answers = []
    for version in (1, 2, 3):
        adapter = make_adapter(job_id="a" * 32, version=version)
        await worker.load_adapter(adapter)
        [completion] = await worker.generate(request(adapter, shared_prompt, max_tokens=12))
        assert completion.token_ids == reference.greedy(adapter, shared_prompt, 12, END)
        answers.append(completion.token_ids)
        await worker.remove_adapter(adapter)
    assert len(set(map(tuple, answers))) == 3


async def test_what_began_earlier_is_decoded_before_what_waits_longer(worker: RolloutWorker) -> None:
    """Three times as many sequences as are decoded at once; then one more, of a group that began before them all."""
    ended: list[str] = []

    async def draw(name: str, began: float) -> None:
        sent = request(BASE, prompt(8), n=32, max_tokens=24, temperature=1.0)
        await worker.generate(dataclasses.replace(sent, began=began))
        ended.append(name)

    waiting = [asyncio.create_task(draw(f"new {index}", 2000.0 + index)) for index in range(6)]
    while (await worker.stats())["waiting"] < 64:
        pass
    await asyncio.gather(*waiting, draw("old", 1000.0))
    # two were being decoded when it came
    assert ended.index("old") <= 2
    assert [name for name in ended if name != "old"][2:] == [f"new {index}" for index in range(2, 6)]


async def test_sampling_repeats_with_the_seed_and_differs_within_a_group(worker: RolloutWorker) -> None:
    draw = request(BASE, prompt(5), n=4, max_tokens=16, temperature=1.0, seed=7)
    first, second = await worker.generate(draw), await worker.generate(draw)
    assert [c.token_ids for c in first] == [c.token_ids for c in second]
    assert len({tuple(c.token_ids) for c in first}) == 4
    neighbour = await worker.generate(dataclasses.replace(draw, seed=8))
    assert not {tuple(c.token_ids) for c in first} & {tuple(c.token_ids) for c in neighbour}


async def test_draws_do_not_depend_on_what_else_is_in_the_batch(worker: RolloutWorker) -> None:
    """Down to a batch of one row, which is what the last to end is in."""
    lengths = [4, 5, 9, 16, 24, 40]
    requests = [request(BASE, prompt(n), n=4, max_tokens=n, temperature=1.0, seed=n) for n in lengths]
    requests.append(request(BASE, prompt(60), max_tokens=60, temperature=1.0, seed=60))
    alone = [await worker.generate(one) for one in requests]
    together = await asyncio.gather(*map(worker.generate, requests))
    for apart, crowded in zip(alone, together, strict=True):
        assert [completion.token_ids for completion in apart] == [completion.token_ids for completion in crowded]


async def test_end_of_turn_token_is_kept(worker: RolloutWorker) -> None:
    completions = await worker.generate(request(BASE, prompt(6), n=64, max_tokens=64, temperature=2.0))
    ended = [completion for completion in completions if completion.finish_reason == "stop"]
    assert ended
    for completion in completions:
        assert len(completion.logprobs) == len(completion.token_ids)
        assert "<|im_end|>" not in completion.text
        if completion.finish_reason == "stop":
            assert completion.token_ids.index(END) == len(completion.token_ids) - 1
        else:
            assert END not in completion.token_ids
            assert len(completion.token_ids) == 64


async def test_more_prompt_tokens_than_one_step_takes(worker: RolloutWorker) -> None:
    requests = [request(BASE, prompt(seed, length=150), temperature=1.0, seed=seed) for seed in range(100, 130)]
    answers = await asyncio.gather(*map(worker.generate, requests))
    assert all(len(completions) == 1 for completions in answers)


# --- adapters come and go --------------------------------------------------------------------------------------------


async def test_more_adapters_than_stay_resident_are_all_served(
    worker: RolloutWorker, make_adapter: MakeAdapter, reference: Reference
) -> None:
    adapters = [make_adapter(rank=4) for _ in range(2 * SLOTS + 2)]
    for adapter in adapters:
        await worker.load_adapter(adapter)
    assert adapters[0].name not in await resident(worker)
    question = prompt(8)
    answers = await asyncio.gather(*(worker.generate(request(adapter, question)) for adapter in adapters))
    for adapter, [completion] in zip(adapters, answers, strict=True):
        assert completion.token_ids == reference.greedy(adapter, question, 8, END)


async def test_new_versions_load_and_old_ones_end_while_every_slot_is_in_use(
    worker: RolloutWorker, make_adapter: MakeAdapter, reference: Reference
) -> None:
    old = [make_adapter(version=1) for _ in range(SLOTS)]
    new = [make_adapter(job_id=ref.job_id, version=2) for ref in old]
    question = prompt(9)
    running = [asyncio.create_task(worker.generate(request(ref, question, max_tokens=100))) for ref in old]
    for ref in old:
        await in_use(worker, ref)
    for ref in new:
        await worker.load_adapter(ref)
    removals = [asyncio.create_task(worker.remove_adapter(ref)) for ref in old]
    await asyncio.sleep(0)
    assert not any(removal.done() for removal in removals)
    answers = await asyncio.gather(*(worker.generate(request(ref, question)) for ref in new))
    for ref, [completion] in zip(new, answers, strict=True):
        assert completion.token_ids == reference.greedy(ref, question, 8, END)
    for ref, [completion] in zip(old, await asyncio.gather(*running), strict=True):
        assert completion.token_ids == reference.greedy(ref, question, 100, END)
    await asyncio.gather(*removals)
    assert not {ref.name for ref in old} & set(await resident(worker))
    assert {ref.name for ref in new} <= set(await resident(worker))


async def test_cancelled_request_frees_its_adapter(worker: RolloutWorker, make_adapter: MakeAdapter) -> None:
    adapter = make_adapter()
    running = asyncio.create_task(worker.generate(request(adapter, prompt(11), n=8, max_tokens=150, temperature=1.0)))
    await in_use(worker, adapter)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    stats = await worker.stats()
    assert stats["running"] == stats["waiting"] == 0
    assert stats["adapters_in_use"] == {}
    await worker.remove_adapter(adapter)
    assert adapter.name not in await resident(worker)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [None, "base", 7])
async def test_request_without_policy_is_refused(worker: RolloutWorker, policy: object) -> None:
    with pytest.raises(TypeError, match="must name its policy"):
        await worker.generate(request(policy, prompt(12)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must name its policy"):
        await worker.score(policy, prompt(12))  # type: ignore[arg-type]


async def test_what_does_not_fit_the_context_is_refused(worker: RolloutWorker) -> None:
    with pytest.raises(ValueError, match=f"do not fit the context of {MAX_MODEL_LEN} tokens"):
        await worker.generate(request(BASE, prompt(13, length=MAX_MODEL_LEN - 7), max_tokens=8))
    [completion] = await worker.generate(request(BASE, prompt(13, length=MAX_MODEL_LEN - 8), max_tokens=8))
    assert completion.token_ids
    with pytest.raises(ValueError, match="prompt is empty"):
        await worker.generate(request(BASE, []))


def rewritten(ref: AdapterRef, weights: bytes | None = None, **config: object) -> AdapterRef:
    """``ref`` with other content under its own digest."""
    folder = Path(ref.path)
    if weights is not None:
        (folder / "adapter_model.safetensors").write_bytes(weights)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    sha256 = hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
    return dataclasses.replace(ref, sha256=sha256)


def reshaped(ref: AdapterRef, module: str, shape: tuple[int, int]) -> AdapterRef:
    path = Path(ref.path, "adapter_model.safetensors")
    weights = {k: torch.zeros(shape) if f"{module}.lora_A" in k else v for k, v in load_file(path).items()}
    save_file(weights, path)
    return rewritten(ref)


def renamed(ref: AdapterRef, old: str, new: str) -> AdapterRef:
    path = Path(ref.path, "adapter_model.safetensors")
    save_file({name.replace(old, new): tensor for name, tensor in load_file(path).items()}, path)
    return rewritten(ref)


BROKEN = {
    "changed since published": (lambda ref: dataclasses.replace(ref, sha256="0" * 64), "changed or damaged"),
    "not in the store": (lambda ref: dataclasses.replace(ref, path="/nowhere"), "not in the store"),
    "garbage": (lambda ref: rewritten(ref, weights=os.urandom(4096)), "not a safetensors file"),
    "rank above the limit": (lambda ref: rewritten(ref, r=MAX_RANK + 1), f"serves ranks 1 to {MAX_RANK}"),
    "foreign module": (lambda ref: renamed(ref, "o_proj", "wo"), "has weights for wo"),
    "wrong shape": (lambda ref: reshaped(ref, "down_proj", (8, 4096)), "cannot be loaded"),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_broken_adapter_is_named_and_others_go_on(
    worker: RolloutWorker, make_adapter: MakeAdapter, reference: Reference, kind: str
) -> None:
    break_it, message = BROKEN[kind]
    sound, broken = make_adapter(), break_it(make_adapter())
    question = prompt(14)
    running = asyncio.create_task(worker.generate(request(sound, question, max_tokens=60)))
    await in_use(worker, sound)
    for attempt in (worker.load_adapter(broken), worker.generate(request(broken, question))):
        with pytest.raises(AdapterError, match=message) as caught:
            await attempt
        assert broken.name in str(caught.value)
    [completion] = await running
    assert completion.token_ids == reference.greedy(sound, question, 60, END)
    assert broken.name not in await resident(worker)
    assert (await worker.stats())["adapters_in_use"] == {}


async def test_adapter_of_nans_concerns_nobody_else(
    worker: RolloutWorker, make_adapter: MakeAdapter, reference: Reference
) -> None:
    sound, broken = make_adapter(), make_adapter()
    path = Path(broken.path, "adapter_model.safetensors")
    save_file({name: torch.full_like(tensor, float("nan")) for name, tensor in load_file(path).items()}, path)
    broken = rewritten(broken)
    policies: list[Policy] = [sound, BASE, broken]
    question = prompt(15)
    answers = await asyncio.gather(
        *(worker.generate(request(policy, question, max_tokens=20)) for policy in policies), return_exceptions=True
    )
    for policy, answer in zip(policies[:2], answers, strict=False):
        assert not isinstance(answer, BaseException)
        assert answer[0].token_ids == reference.greedy(policy, question, 20, END)
    assert isinstance(answers[2], AdapterError)
    assert "not finite" in str(answers[2])


# --- the process -----------------------------------------------------------------------------------------------------


async def test_engine_lives_in_this_process(worker: RolloutWorker) -> None:
    """Nothing can be orphaned: there is no engine process."""
    assert await worker.ping() == "ok"
    assert not [child for child in psutil.Process().children(recursive=True) if "Engine" in child.name()]
    assert (await worker.stats())["kv_capacity_tokens"] > MAX_MODEL_LEN
