"""The engine: rollout, environments and training of every tenant's jobs, on Ray.

It shares only :mod:`engine.spec` and :mod:`engine.events` with the portal and never imports Django or ``portal``.
"""
