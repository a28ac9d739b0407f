"""The order of claims: the same as by looking at each of them, and quick with many."""

import random

from engine.scheduling.shares import Claim, FairShares


def plainly_first(shares: FairShares, waiting: list[Claim]) -> Claim | None:
    """The least used tenant's most wanted job, by comparing all claims."""

    def rank(claim: Claim) -> tuple[float, int, float, int]:
        share = shares._shares[claim.tenant_id]
        return share.used, -claim.priority, share.jobs[claim.job_id], claim.order

    return min((claim for claim in waiting if not claim.turn.done()), key=rank, default=None)


async def test_the_first_is_the_least_used_of_all_whatever_happened_before():
    rng = random.Random(5)
    shares, waiting, taken = FairShares(), [], []
    for _ in range(4000):
        what = rng.random()
        if what < 0.45:
            tenant = f"t{rng.randrange(6)}"
            job, priority = f"{tenant}-{rng.randrange(3)}", rng.choice([0, 0, 0, 3])
            waiting.append(shares.add(tenant, job, weight=rng.choice([1.0, 2.0]), priority=priority, size=1.0))
        elif what < 0.8 and (claim := shares.first()):
            shares.take(claim)
            waiting.remove(claim)
            shares.charge(claim, rng.randrange(1, 9))
            taken.append(claim)
        elif what < 0.9 and waiting:
            claim = waiting.pop(rng.randrange(len(waiting)))
            claim.turn.cancel()
            if rng.random() < 0.5:
                shares.drop(claim)
        elif taken:
            shares.charge(rng.choice(taken), -rng.random())
        assert shares.first() is plainly_first(shares, waiting)
    assert len(taken) > 1000


async def test_dropping_a_claim_twice_leaves_the_others():
    shares = FairShares()
    first, second = (shares.add("t", "j", weight=1, priority=0, size=1) for _ in range(2))
    shares.drop(first)
    shares.drop(first)
    assert len(shares) == 1 and shares.first() is second
