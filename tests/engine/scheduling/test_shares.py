"""What people are shown of the shares: use by tenant, older use counted less."""

import pytest

from engine.scheduling.shares import HALF_LIFE, FairShares


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_use_is_shown_against_weights_and_halves_with_time():
    clock = Clock()
    shares = FairShares(clock)
    one = shares.add("a", "job", weight=1, priority=0, size=0)
    shares.take(one)
    shares.charge(one, 80)
    clock.now = HALF_LIFE
    two = shares.add("b", "other", weight=3, priority=0, size=0)
    shares.charge(two, 30)
    shares.charge(two, -10)  # the estimate was too high
    described = {share.tenant_id: share for share in shares.describe()}
    assert (described["a"].used, described["a"].weight, described["a"].waiting) == (pytest.approx(40), 1, 0)
    assert (described["b"].used, described["b"].weight, described["b"].waiting) == (pytest.approx(20), 3, 1)
    shares.take(two)
    clock.now = 30 * HALF_LIFE
    assert shares.describe() == [], "long ago"


async def test_who_only_waits_is_shown():
    shares = FairShares(Clock())
    shares.add("a", "job", weight=2, priority=0, size=5)
    (share,) = shares.describe()
    assert (share.used, share.waiting) == (0, 1)


async def test_showing_does_not_change_whose_turn_it_is():
    clock = Clock()
    shares = FairShares(clock)
    first = shares.add("a", "job", weight=1, priority=0, size=0)
    shares.add("b", "other", weight=1, priority=0, size=0)
    shares.charge(first, 1.0)
    clock.now = 100 * HALF_LIFE
    shares.describe()
    claim = shares.first()
    assert claim is not None and claim.tenant_id == "b"


async def test_a_job_that_is_forgotten_while_it_waits_keeps_nobody_else_from_its_turn():
    """A paused or cancelled job is forgotten before the callers that wait on its behalf are cancelled."""
    shares = FairShares(Clock())
    left = shares.add("a", "paused", weight=1, priority=0, size=5)
    ours = shares.add("a", "going on", weight=1, priority=0, size=5)
    theirs = shares.add("b", "another", weight=1, priority=0, size=5)
    shares.forget("a", "paused")
    served = []
    while claim := shares.first():
        shares.take(claim)
        shares.charge(claim, 5)
        served.append(claim)
    assert {id(claim) for claim in served} == {id(left), id(ours), id(theirs)}
