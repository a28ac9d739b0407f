"""Fixtures of the trainer's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.training.trainer import Trainer


@pytest.fixture(scope="session")
def make_trainer(tiny_model: Path) -> Callable[..., Trainer]:
    """Trainers of the tiny model, fp32 on one CPU thread where nothing else is said."""

    def make(**settings: int) -> Trainer:
        return Trainer(str(tiny_model), dtype="float32", device="cpu", **{"threads": 1, **settings})

    return make
