"""Fixtures of the engine's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.running import Engine


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny random model, fp32 (see engine/tiny.py)."""
    from engine.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="package")
def local_ray() -> Iterator[None]:
    """One Ray for every test that needs no cluster of its own (rollout/test_cluster.py, which is over before)."""
    import ray

    ray.init(
        address="local", namespace="marlaas", include_dashboard=False, log_to_driver=False, num_cpus=2,
        object_store_memory=100 * 2**20, _temp_dir=f"/tmp/marlaas-test-{os.getpid()}",  # a socket's path is short
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(scope="package")
def engine(local_ray: None, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Engine:
    """One engine for every test that leaves it as it was: no job unfinished, nothing drained."""
    from tests.engine.running import Engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARLAAS_REMOTE_ENVIRONMENTS_ALLOW_PRIVATE", "true")
        return Engine(tmp_path_factory.mktemp("engine"), tiny_model)
