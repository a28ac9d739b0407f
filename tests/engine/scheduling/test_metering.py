"""Accelerator time is split between those served at once and adds up."""

import pytest

from engine.scheduling.metering import SharedMeter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_time_is_split_by_requests_and_adds_up_to_the_busy_time():
    clock = Clock()
    meter = SharedMeter(clock)
    clock.now = 5.0  # idle
    with meter.serve("a"):
        clock.now = 7.0
        with meter.serve("b"), meter.serve("b"):
            clock.now = 10.0
    clock.now = 20.0  # idle
    assert meter.take("a") == pytest.approx(2 + 1)
    assert meter.take("b") == pytest.approx(2)
    assert meter.take("a") == 0


def test_what_runs_on_is_counted_up_to_now():
    clock = Clock()
    meter = SharedMeter(clock)
    with meter.serve("a"):
        clock.now = 1.0
        assert meter.take("a") == 1.0
        clock.now = 3.0
    assert meter.take("a") == 2.0
