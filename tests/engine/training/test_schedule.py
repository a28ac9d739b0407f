"""Learning rates worked out by hand."""

from __future__ import annotations

import pytest

from engine.spec import TrainingSettings
from engine.training.schedule import learning_rate


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1, 1, 1, 1, 1]),
        ({"warmup_steps": 2}, [0.5, 1, 1, 1, 1]),
        ({"warmup_steps": 10}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"schedule": "linear"}, [1, 0.8, 0.6, 0.4, 0.2]),
        ({"schedule": "linear", "warmup_steps": 2}, [0.5, 1, 0.75, 0.5, 0.25]),
        # (1 + cos(pi * i / 5)) / 2
        ({"schedule": "cosine"}, [1, 0.904508, 0.654508, 0.345492, 0.095492]),
        ({"schedule": "cosine", "warmup_steps": 2}, [0.5, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_rate_of_each_of_five_steps(settings, rates):
    training = TrainingSettings(steps=5, learning_rate=1.0, **settings)
    assert [learning_rate(training, step) for step in range(1, 6)] == pytest.approx(rates, abs=1e-6)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 99])
def test_every_step_moves_the_adapter(schedule, warmup):
    training = TrainingSettings(steps=100, schedule=schedule, warmup_steps=warmup)
    rates = [learning_rate(training, step) for step in range(1, 101)]
    assert min(rates) > 0 and max(rates) == training.learning_rate
