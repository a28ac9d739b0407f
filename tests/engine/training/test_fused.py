"""The fused operators give what PyTorch's eager ones give, forwards and backwards."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama import modeling_llama

from engine.native import fused
from engine.training.distribution import Distribution
from engine.training.fusing import fuse

pytestmark = pytest.mark.skipif(not fused.serves(torch.zeros(1)), reason="no C compiler")
DTYPES = [torch.float32, torch.bfloat16]


def random(*shape, dtype=torch.float32, seed=0, grad=True):
    tensor = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return tensor.requires_grad_(grad)


def check(ours, reference, *inputs):
    """Results and gradients of both for the same gradient of the result."""
    found = []
    for function in (ours, reference):
        leaves = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
        out = function(*leaves)
        out.backward(random(*out.shape, dtype=out.dtype, seed=9, grad=False))
        found.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs)


def close(mine, theirs):
    tolerance = 1e-5 if theirs.dtype == torch.float32 else 2**-6
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype):
    def reference(x):
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(dtype)

    weight = random(70, dtype=dtype, seed=2, grad=False)
    check(lambda x: fused.rms_norm(x, weight, 1e-5), reference, random(1, 5, 70, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(dtype):
    gate, up = random(3, 50, dtype=dtype), random(3, 50, dtype=dtype, seed=1)
    gate.data[0, :3] = torch.tensor([-95.0, 0.0, 95.0])  # where exp overflows
    check(fused.swiglu, lambda gate, up: functional.silu(gate) * up, gate, up)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_positions_of_any_strides(dtype):
    angles = random(1, 7, 8, seed=3, grad=False).repeat(1, 1, 2)
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)

    def reference(x):
        x = x.transpose(1, 2)
        return modeling_llama.rotate_half(x) * sines[:, None] + x * cosines[:, None]

    check(lambda x: fused.rotate(x.transpose(1, 2), cosines, sines), reference, random(1, 7, 3, 16, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_softmax(dtype):
    mask = torch.zeros(6, 6, dtype=dtype).masked_fill_(torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf"))

    def reference(x):
        return torch.softmax((2 * x).view(2, 2, 6, 6) * 0.3 + mask, -1, dtype=torch.float32).to(dtype).view(2, 12, 6)

    check(lambda x: fused.masked_softmax(2 * x, mask, 0.3), reference, random(2, 12, 6, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("bonus", [0.0, 0.25])
def test_distribution(dtype, temperature, bonus, monkeypatch):
    logits, targets = 3 * random(4, 300, dtype=dtype, grad=False), torch.tensor([0, 5, 299, 5])
    slopes, bonuses = random(4, seed=4, grad=False), torch.full((4,), bonus)
    whole = logits.float().requires_grad_()
    logprobs = torch.log_softmax(whole / temperature, -1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    (slopes @ chosen + bonuses @ entropies).backward()

    for served in (True, False):
        if not served:
            monkeypatch.setattr(fused, "serves", lambda *tensors: False)
        found = Distribution(logits.clone(), targets, temperature)
        torch.testing.assert_close(found.logprobs, chosen.detach(), atol=1e-5, rtol=1e-5)
        mine, gradient = found.entropy_and_gradient(slopes, bonuses)
        torch.testing.assert_close(mine, entropies.detach(), atol=1e-4, rtol=1e-5)
        close(gradient, whole.grad.to(gradient.dtype))


def small_llama(**changes):
    settings = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 60, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**settings | changes)).eval()


@pytest.fixture
def eager_rotary(monkeypatch):
    """transformers' own function, whatever this process has made of it."""
    name = "apply_rotary_pos_emb"
    current = getattr(modeling_llama, name)
    monkeypatch.setattr(modeling_llama, name, getattr(current, "eager", current))


def test_a_fused_model_is_the_same_model(eager_rotary):
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    model = small_llama()
    expected = model(ids).logits
    assert fuse(model) == {"norms": 5, "feed-forward blocks": 2, "rotary positions": 1}
    torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():  # as wrapped layers are, weights are looked up at each call
        model.model.layers[0].mlp.up_proj.weight.zero_()
    assert not torch.allclose(model(ids).logits, expected, atol=1e-3)


def test_what_only_looks_alike_is_left_alone(eager_rotary):
    assert fuse(small_llama(hidden_act="gelu"))["feed-forward blocks"] == 0
    norm = GemmaRMSNorm(16)
    norm.variance_epsilon = norm.eps
    norm.weight.data.uniform_(0.5, 1)
    assert fuse(nn.Sequential(norm))["norms"] == 0
