"""Seeds of neighbouring requests do not share draws."""

import itertools

from engine.rollout.worker import spread_seed


def test_spread_seeds_stay_further_apart_than_any_group_is_large() -> None:
    seeds = sorted(spread_seed(seed) for seed in range(1000))
    assert min(after - before for before, after in itertools.pairwise(seeds)) > 10_000
    assert seeds[0] >= 0
    assert seeds[-1] < 2**63
