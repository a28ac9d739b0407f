"""A doctor that was stored and restored neither repeats nor forgets."""

from __future__ import annotations

import json
import random

import pytest

from engine.doctor import Doctor
from tests.engine.doctor.runs import Run, make_spec, rising

SICK_ALL_OVER = Run(
    make_spec(),
    correct=lambda t: 0.3 + 0.5 * t,
    held_out=rising(0.6, 0.1),
    truncated=rising(0.2, 1.0),
    errors=lambda t: 0.4 if 0.2 < t < 0.5 else 0.0,
    gap=rising(0.02, 0.8),
    entropy=rising(0.9, 0.001),
    environment=rising(1, 100),
    tokens=rising(60, 500),
)


@pytest.mark.parametrize("seed", range(3))
def test_stored_and_restored_after_every_observation_it_says_the_same(seed):
    class Interrupted(Doctor):
        """Forgets everything but its state, as JSON, before each observation."""

        def observe_step(self, *arguments):
            return self._revived().observe_step(*arguments)

        def observe_evaluation(self, *arguments):
            return self._revived().observe_evaluation(*arguments)

        def _revived(self):
            state = json.loads(json.dumps(self.state()))
            self.inner = Doctor(SICK_ALL_OVER.spec)
            self.inner.restore(state)
            return self.inner

        def state(self):
            return self.inner.state() if hasattr(self, "inner") else super().state()

    whole = SICK_ALL_OVER.play(seed)
    assert len({notice.code for _, notice in whole}) >= 5
    assert SICK_ALL_OVER.play(seed, Interrupted(SICK_ALL_OVER.spec)) == whole


def test_a_committed_step_or_an_evaluation_observed_again_changes_nothing():
    doctor, rng = Doctor(make_spec()), random.Random(0)
    for step in range(1, 10):
        doctor.observe_step(step, SICK_ALL_OVER.metrics(40, rng), [])
    doctor.observe_evaluation(5, 0.5, 0.5)
    before = doctor.state()
    assert doctor.observe_step(9, SICK_ALL_OVER.metrics(40, rng), []) == []
    assert doctor.observe_step(3, {"truncated_fraction": 1.0}, []) == []
    assert doctor.observe_evaluation(5, 0.1, 0.1) == []
    assert doctor.observe_evaluation(0, 0.1, 0.1) == []
    assert doctor.state() == before


def test_batches_dropped_before_a_step_all_count():
    """Several batches are drawn for a step until one has signal; each is evidence."""
    doctor = Doctor(make_spec())
    silent = {"zero_variance_groups": 8.0, "accuracy": 0.0, "reward_mean": 0.0}
    said = [notice for _ in range(6) for notice in doctor.observe_step(1, silent, [])]
    assert [notice.code for notice in said] == ["no_learning_signal"]
    assert doctor.observe_step(1, silent | {"zero_variance_groups": 7.0, "tokens_trained": 9.0}, []) == []
    assert doctor.state()["committed"] == 1


def test_its_state_is_small_and_does_not_grow():
    doctor, rng, sizes = Doctor(make_spec()), random.Random(0), []
    for step in range(1, 300):
        doctor.observe_step(step, SICK_ALL_OVER.metrics(30, rng), [])
        doctor.observe_evaluation(step, rng.random(), rng.random())
        sizes.append(len(json.dumps(doctor.state())))
    assert max(sizes) < 6000
    assert max(sizes[20:40]) * 1.1 > max(sizes)


def test_from_an_empty_state_it_begins_anew():
    doctor = Doctor(make_spec())
    doctor.observe_step(1, {"reward_mean": 0.5, "tokens_trained": 1.0}, [])
    doctor.restore({})
    assert doctor.state() == Doctor(make_spec()).state()


def test_numbers_that_are_none_are_left_out():
    doctor = Doctor(make_spec())
    for step in range(1, 20):
        metrics = {"kl": float("nan"), "entropy": float("inf"), "reward_mean": 0.5, "tokens_trained": 1.0}
        assert doctor.observe_step(step, metrics, []) == []
    json.dumps(doctor.state(), allow_nan=False)
