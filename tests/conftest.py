"""What holds for every test process."""

import os

# Before anything imports torch: the models of the tests are tiny and several processes share the cores, so threads would
# only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
