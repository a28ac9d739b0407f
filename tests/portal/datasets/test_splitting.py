"""Which rows are held out."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from portal.datasets.splitting import HELD_OUT, TRAIN, UNDECIDED, assign_splits, prompt_hash


def hashes_of(prompts, seed=0):
    return array("Q", [prompt_hash([{"role": "user", "content": prompt}], seed) for prompt in prompts])


def undecided(count):
    return array("b", [UNDECIDED] * count)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([TRAIN, HELD_OUT, UNDECIDED])), min_size=1),
    st.floats(0, 0.99),
)
def test_what_always_holds(rows, fraction):
    prompts = [prompt for prompt, _ in rows]
    given_splits = array("b", [split for _, split in rows])
    decided = assign_splits(given_splits, hashes_of(prompts), fraction)
    assert UNDECIDED not in decided
    assert all(was in (UNDECIDED, now) for was, now in zip(given_splits, decided, strict=True))
    if set(given_splits) != {HELD_OUT}:
        assert TRAIN in decided
    if fraction > 0 and len(rows) >= 2 and UNDECIDED in given_splits and set(given_splits) == {UNDECIDED}:
        assert HELD_OUT in decided
    if fraction == 0:
        assert decided.count(HELD_OUT) == given_splits.count(HELD_OUT)


def test_a_tenth_of_distinct_prompts():
    decided = assign_splits(undecided(200), hashes_of([str(n) for n in range(200)]), 0.1)
    assert decided.count(HELD_OUT) == 20


def test_the_same_prompt_is_never_on_both_sides():
    prompts = [str(n % 10) for n in range(100)]
    decided = assign_splits(undecided(100), hashes_of(prompts), 0.25)
    held_out = {prompt for prompt, split in zip(prompts, decided, strict=True) if split == HELD_OUT}
    train = {prompt for prompt, split in zip(prompts, decided, strict=True) if split == TRAIN}
    assert len(held_out) == 3  # 25 rows wanted, ten of each prompt
    assert not held_out & train


def test_the_seed_decides():
    prompts = [str(n) for n in range(100)]
    first = assign_splits(undecided(100), hashes_of(prompts, seed=1), 0.1)
    assert first == assign_splits(undecided(100), hashes_of(prompts, seed=1), 0.1)
    assert first != assign_splits(undecided(100), hashes_of(prompts, seed=2), 0.1)


def test_small_files():
    assert list(assign_splits(undecided(1), hashes_of("a"), 0.5)) == [TRAIN]
    assert sorted(assign_splits(undecided(2), hashes_of("ab"), 0.01)) == [TRAIN, HELD_OUT]
    assert sorted(assign_splits(undecided(2), hashes_of("aa"), 0.9)) == [TRAIN, HELD_OUT]
