"""How an episode unfolds, and the worker that runs groups of episodes."""
