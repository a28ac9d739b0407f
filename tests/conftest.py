"""What holds for every test process."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports torch: the models of the tests are tiny and several processes share the cores, so threads
# would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How fast examples come says how busy the machine is, not whether they pass.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """What the migrations put in is there again after a test that empties the tables; that sends ``post_migrate``."""

    from django.db.models.signals import post_migrate

    from portal.base_models.services import ensure_bundled_base_model

    def restore(sender: Any, **more: Any) -> None:
        if sender.label == "base_models":
            ensure_bundled_base_model()

    post_migrate.connect(restore)
    yield
    post_migrate.disconnect(restore)
