"""The LoRA kernel in C, row by row against the definition in double precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.rollout.cpu_lora import Weights, add_lora, group_rows
from engine.rollout.cpu_lora_kernel import layer_of, load_kernel
from tests.engine.rollout.test_cpu_lora import MIXES

SLOTS = 4
SHAPES = {
    "as in SmolLM2": (576, 16, (576, 192, 192)),
    "inputs that fill no register": (40, 16, (48,)),
    "the lowest even rank": (64, 2, (16, 32)),
    "an odd number of pairs": (96, 6, (64,)),
    "a high rank": (64, 512, (32,)),
}


@pytest.fixture(scope="module")
def kernel():
    if "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX-512 BF16")
    kernel = load_kernel()
    assert kernel is not None
    return kernel


def stacks(inputs: int, rank: int, widths: tuple[int, ...]):
    generator = torch.Generator().manual_seed(0)
    a = [torch.randn(SLOTS, 1, rank, inputs, generator=generator) / inputs**0.5 for _ in widths]
    b = [torch.randn(SLOTS, 1, width, rank, generator=generator) / rank**0.5 for width in widths]
    return tuple(one.bfloat16() for one in a), tuple(one.bfloat16() for one in b)


def by_definition(y, x, a, b, mix):
    """In double precision, with A x rounded as the kernel rounds it."""
    y = y.double()
    for row, slot in enumerate(mix):
        if slot >= 0:
            hidden = [(a_s[slot, 0].double() @ x[row].double()).bfloat16().double() for a_s in a]
            y[row] += torch.cat([b_s[slot, 0].double() @ h for b_s, h in zip(b, hidden, strict=True)])
    return y


def close(found, expected):
    # One rounding of the result, and of A x where fp32 and fp64 sums round to different sides.
    torch.testing.assert_close(found.double(), expected, atol=2**-6, rtol=2**-7)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_every_row_gets_its_own_adapter(kernel, mix, shape):
    inputs, rank, widths = shape
    a, b = stacks(inputs, rank, widths)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(mix) + 2, inputs, generator=generator).bfloat16()  # two rows of padding
    y = torch.randn(len(mix) + 2, sum(widths), generator=generator).bfloat16()
    before, expected = y.clone(), by_definition(y, x, a, b, mix)
    assert layer_of(a, b, widths) is not None
    add_lora(y, x, a, b, widths, group_rows(torch.tensor(mix)), Weights(kernel))
    close(y, expected)
    untouched = [row for row in range(len(y)) if row >= len(mix) or mix[row] < 0]
    assert torch.equal(y[untouched], before[untouched])


def test_rows_of_a_wider_tensor(kernel):
    a, b = stacks(64, 16, (32,))
    mix = [0, 2, -1, 0]
    x = torch.randn(4, 64 + 24).bfloat16()[:, :64]
    wide = torch.randn(4, 32 + 8).bfloat16()
    before, expected = wide.clone(), by_definition(wide[:, :32], x, a, b, mix)
    kernel_rows = group_rows(torch.tensor(mix)).blocks
    kernel.add(wide[:, :32], x, layer_of(a, b, (32,)), kernel_rows)
    close(wide[:, :32], expected)
    assert torch.equal(wide[:, 32:], before[:, 32:])


def test_broken_weights_reach_only_their_own_rows(kernel):
    mix = MIXES["very uneven"]
    a, b = stacks(64, 16, (32, 16))
    x, y = torch.randn(len(mix), 64).bfloat16(), torch.randn(len(mix), 48).bfloat16()
    expected = by_definition(y, x, a, b, mix)
    for stack in (*a, *b):
        stack[2] = float("nan")
    broken = [row for row, slot in enumerate(mix) if slot == 2]
    x[broken] = float("inf")
    add_lora(y, x, a, b, (32, 16), group_rows(torch.tensor(mix)), Weights(kernel))
    sound = [row for row, slot in enumerate(mix) if slot != 2]
    close(y[sound], expected[sound])
    assert y[broken].isnan().all()


def test_new_content_of_a_slot_is_seen(kernel):
    mix, weights = [0, 1, 1], Weights(kernel)
    a, b = stacks(64, 16, (32,))
    x = torch.randn(3, 64).bfloat16()
    add_lora(torch.zeros(3, 32).bfloat16(), x, a, b, (32,), group_rows(torch.tensor(mix)), weights)
    a[0][1, 0].copy_(torch.randn(16, 64) / 8)  # as vLLM fills a slot: in place
    y = torch.zeros(3, 32).bfloat16()
    expected = by_definition(y, x, a, b, mix)
    add_lora(y, x, a, b, (32,), group_rows(torch.tensor(mix)), weights)
    close(y, expected)


def test_what_it_does_not_serve_is_left_to_matmuls(kernel):
    for rank, widths, dtype in ((3, (16,), torch.bfloat16), (4, (24,), torch.bfloat16), (4, (16,), torch.float32)):
        a, b = stacks(64, rank, widths)
        a, b = tuple(one.to(dtype) for one in a), tuple(one.to(dtype) for one in b)
        assert layer_of(a, b, widths) is None
        x, y = torch.randn(3, 64).to(dtype), torch.zeros(3, sum(widths), dtype=dtype)
        expected = by_definition(y, x, a, b, [0, 1, 1])
        add_lora(y, x, a, b, widths, group_rows(torch.tensor([0, 1, 1])), Weights(kernel))
        close(y, expected)
