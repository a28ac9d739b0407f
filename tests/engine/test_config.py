"""The engine's settings from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig


@pytest.mark.parametrize(("value", "expected"), [("", Path("var")), ("/srv/marlaas", Path("/srv/marlaas"))])
def test_what_is_set_to_nothing_counts_as_not_set(monkeypatch, value, expected):
    monkeypatch.setenv("MARLAAS_VAR", value)
    assert EngineConfig().var == expected
