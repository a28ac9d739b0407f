"""The sampler's kernel draws from the softmax, and its draws depend on a request's seed alone."""

import pytest
import torch

from engine.rollout import cpu_sampler

VOCABULARY = 2500  # more than two of the kernel's blocks

pytestmark = pytest.mark.skipif(cpu_sampler._kernel() is None, reason="no C compiler")


def logits(rows=1, seed=0):
    return 2 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def generators(*seeds):
    return {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(seeds)}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_come_as_often_as_they_are_likely(temperature):
    draws = 200_000
    row = logits()
    torch.manual_seed(1)
    tokens, _ = cpu_sampler.draw(row.expand(draws, -1).contiguous(), torch.full((draws,), temperature), {})
    found = torch.bincount(tokens, minlength=VOCABULARY).double()
    expected = draws * torch.softmax(row[0].double() / temperature, 0)
    common = expected > 20
    chi_square = float(((found - expected) ** 2 / expected)[common].sum())
    count = int(common.sum())
    assert count > 50
    assert abs(chi_square - count) < 5 * (2 * count) ** 0.5
    assert abs(float(found[~common].sum() - expected[~common].sum())) < 5 * float(expected[~common].sum()) ** 0.5


def test_log_probabilities_are_those_of_the_temperature():
    rows, temperatures = logits(6), torch.tensor([1.0, 0.7, 2.0, 0.0, 1.0, 0.3])
    tokens, logprobs = cpu_sampler.draw(rows, temperatures, generators(*range(6)))
    divisors = torch.where(temperatures == 0, 1.0, temperatures)[:, None]
    expected = torch.log_softmax(rows / divisors, -1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    assert tokens[3] == rows[3].argmax()


def test_without_temperatures_the_most_likely_is_taken():
    rows = logits(5)
    rows[2, 7] = rows[2, 2400] = 50.0  # of equals the first
    tokens, logprobs = cpu_sampler.draw(rows, None, {})
    assert tokens.tolist() == rows.argmax(-1).tolist()
    assert tokens[2] == 7
    torch.testing.assert_close(logprobs, torch.log_softmax(rows, -1).amax(-1), atol=1e-5, rtol=1e-5)


def test_a_draw_depends_on_its_seed_alone():
    rows = logits(4)
    together, _ = cpu_sampler.draw(rows, torch.ones(4), generators(5, 6, 7, 8))
    for index, seed in enumerate((5, 6, 7, 8)):
        alone, _ = cpu_sampler.draw(rows[index : index + 1].clone(), torch.ones(1), generators(seed))
        assert alone[0] == together[index]


def test_draws_of_one_generator_go_on():
    generator = generators(3)
    found = {int(cpu_sampler.draw(logits(), torch.ones(1), generator)[0]) for _ in range(20)}
    assert len(found) > 10


def test_tokens_without_a_probability_are_never_drawn():
    rows = logits().expand(2000, -1).clone()
    rows[:, :1100] = rows[:, -100:] = float("-inf")  # one whole block and parts of two
    tokens, logprobs = cpu_sampler.draw(rows, torch.ones(2000), {})
    assert tokens.min() >= 1100
    assert tokens.max() < VOCABULARY - 100
    assert torch.isfinite(logprobs).all()


def test_logits_that_differ_by_rounding_draw_the_same_tokens():
    rows = logits(20_000)
    seeds = range(len(rows))
    noise = 1e-6 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    tokens, _ = cpu_sampler.draw(rows, torch.ones(len(rows)), generators(*seeds))
    others, _ = cpu_sampler.draw(rows + noise, torch.ones(len(rows)), generators(*seeds))
    assert int((tokens != others).sum()) <= 2


def test_rows_of_a_padded_vocabulary_are_drawn_from_alike():
    rows = logits(3)
    padded = torch.cat([rows, torch.full((3, 60), 99.0)], -1)[:, :VOCABULARY]
    assert not padded.is_contiguous()
    tokens, logprobs = cpu_sampler.draw(rows, torch.ones(3), generators(1, 2, 3))
    others, other_logprobs = cpu_sampler.draw(padded, torch.ones(3), generators(1, 2, 3))
    assert (tokens.tolist(), logprobs.tolist()) == (others.tolist(), other_logprobs.tolist())


@pytest.mark.engine
def test_vllm_samples_by_it_and_otherwise_as_before():
    from types import SimpleNamespace

    from vllm.v1.sample.sampler import Sampler

    cpu_sampler.register()
    cpu_sampler.register()
    sampler, rows = Sampler(logprobs_mode="processed_logprobs"), logits(2)
    metadata = SimpleNamespace(
        max_num_logprobs=0, logprob_token_ids=None, top_k=None, top_p=None, all_greedy=False, all_random=True,
        temperature=torch.ones(2), generators=generators(1, 2), logitsprocs=SimpleNamespace(argmax_invariant=[]),
    )  # fmt: skip
    padded = torch.cat([rows, torch.zeros(2, 60)], -1)[:, :VOCABULARY]  # whatever vLLM does to its vocabulary
    tokens, logprobs = sampler.sample(padded, metadata)
    expected, chosen = cpu_sampler.draw(rows, torch.ones(2), generators(1, 2))
    assert tokens.tolist() == expected.tolist()
    gathered = sampler.gather_logprobs(logprobs, 0, tokens)
    assert gathered.logprob_token_ids.tolist() == tokens[:, None].tolist()
    assert gathered.logprobs.tolist() == chosen[:, None].tolist()

    metadata.top_k = torch.tensor([1, 1])
    tokens, logprobs = sampler.sample(rows.clone(), metadata)
    assert tokens.tolist() == rows.argmax(-1).tolist()
    assert logprobs.shape == rows.shape

    whole = torch.log_softmax(rows, -1)
    gathered = sampler.gather_logprobs(whole, 0, tokens)
    assert gathered.logprobs.tolist() == whole.gather(1, tokens[:, None]).tolist()
