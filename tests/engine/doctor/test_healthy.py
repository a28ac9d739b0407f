"""A healthy run, however noisy, gets no warning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.doctor.runs import Run, make_spec, rising, steady

SIZES = [(8, 8, 64, 60), (4, 8, 64, 30), (2, 8, 32, 120), (1, 4, 16, 100), (16, 8, 128, 60), (32, 16, 64, 20)]
"""Prompts a step, group size, held-out rows, steps."""

SHAPES = {
    "learns": {},
    "learns slowly": {"correct": rising(0.2, 0.35)},
    "stands still": {"correct": steady(0.4), "entropy": rising(0.6, 0.3)},
    "solves it": {"correct": rising(0.3, 0.99), "entropy": rising(1.0, 0.01)},
    "learns late and suddenly": {"correct": rising(0.12, 0.9, middle=0.7, steepness=20)},
    "reasons longer and better": {"correct": rising(0.2, 0.8, 0.5, 5), "tokens": rising(60, 180, 0.5, 5)},
    "learns to be brief": {"tokens": rising(300, 40), "truncated": rising(0.55, 0.02)},
    "goes far from the base": {"correct": rising(0.1, 0.85), "kl": rising(0, 2)},
    "was certain from the start": {"correct": steady(0.5), "entropy": steady(0.03)},
    "is noisy": {"correct": rising(0.15, 0.6), "noise": 0.5},
    "has hard data": {"correct": rising(0.08, 0.3), "spread": 1.5},
    "forgets a little": {"held_out": rising(0.5, 0.45)},
    "clips as sequence-level algorithms do": {"clipped": steady(0.2)},
    "has a slow but bearable environment": {"environment": steady(15)},
}


# Fixed examples: with thousands of windows looked at, about one run in a thousand (the smallest ones, of few episodes
# a step) is unlucky enough to look sick.
@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(SHAPES)), st.sampled_from(SIZES), st.integers(0, 10**6))
def test_a_healthy_run_gets_no_warning(shape, size, seed):
    *sizes, steps = size
    run = Run(make_spec(*sizes), steps, **SHAPES[shape])
    assert [(step, notice) for step, notice in run.play(seed) if notice.level == "warning"] == []


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_shape_at_the_usual_size(shape):
    run = Run(make_spec(), **SHAPES[shape])
    assert [(step, notice) for step, notice in run.play(1) if notice.level == "warning"] == []


def test_a_solved_task_is_said_as_information():
    """Nothing is left to learn, which is good to know and no sickness."""
    said = Run(make_spec(), correct=rising(0.3, 0.999, middle=0.2), spread=0.5).play(3)
    assert [(notice.code, notice.level) for _, notice in said] == [("no_learning_signal", "info")]
    assert "were solved by every completion" in said[0][1].message
    assert "harder ones" in said[0][1].hint
