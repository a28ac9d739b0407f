"""vLLM's compiled RMSNorm gives what its eager one gives."""

import pytest

pytestmark = pytest.mark.engine

HIDDEN = 96


@pytest.fixture(params=["float32", "bfloat16"])
def norm(request):
    """A norm as a model has it, with weights of its own; and inputs are of its dtype."""
    import torch
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm

    from engine.rollout import cpu_ops

    cpu_ops.register()
    eager = VllmConfig(compilation_config=CompilationConfig(mode=0, custom_ops=["all"]))
    with set_current_vllm_config(eager):
        layer = RMSNorm(HIDDEN, eps=1e-5, dtype=getattr(torch, request.param))
    assert layer._forward_method.__func__ is cpu_ops.rms_norm
    layer.weight.data.uniform_(0.5, 2, generator=torch.Generator().manual_seed(1))
    return layer


def inputs(norm, *shape, seed=0):
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(norm.weight.dtype) * 3


def close(found, expected):
    import torch

    tolerance = {"atol": 1e-6, "rtol": 1e-5} if found.dtype == torch.float32 else {"atol": 2**-6, "rtol": 2**-7}
    torch.testing.assert_close(found, expected, **tolerance)


def reference(norm, x):
    """By the formula, in fp64."""
    import torch

    x = x.double()
    scaled = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (scaled * norm.weight.double()).to(norm.weight.dtype)


def test_a_norm_is_what_the_formula_says(norm):
    x = inputs(norm, 7, HIDDEN)
    kept = x.clone()
    close(norm(x), reference(norm, x))
    assert x.equal(kept)


def test_with_a_residual_it_returns_the_norm_of_the_sum_and_the_sum(norm):
    x, residual = inputs(norm, 7, HIDDEN), inputs(norm, 7, HIDDEN, seed=1)
    total = (x.double() + residual.double()).to(x.dtype)
    normed, carried = norm(x.clone(), residual.clone())
    close(normed, reference(norm, total))
    close(carried, total)


def test_other_layouts_are_left_to_vllm(norm):
    x = inputs(norm, 2, 7, HIDDEN)
    close(norm(x), reference(norm, x))
    strided = inputs(norm, 7, 2 * HIDDEN)[:, :HIDDEN]
    close(norm(strided), reference(norm, strided))
