"""``make bench``: what the engine and the portal can do on this machine, both sides of every comparison in one run.

``python -m tests.benchmarks`` runs the parts, each in a process of its own; see ``__main__``. Each part writes
``var/bench/<letter>.json``, and the report is made anew from all of them, so parts may be run one at a time.
"""
