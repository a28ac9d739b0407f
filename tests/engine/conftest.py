"""Fixtures of the engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny random model, fp32 (see engine/tiny.py)."""
    from engine.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))
