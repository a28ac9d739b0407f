"""What holds for every test process."""

import os

from hypothesis import HealthCheck, settings

# Before anything imports torch: the models of the tests are tiny and several processes share the cores, so threads
# would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How fast examples come says how busy the machine is, not whether they pass.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
