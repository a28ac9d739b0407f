"""The trainer's errors."""


class TrainingError(Exception):
    """A step or a job cannot go on; ``reason`` says why in plain words. Nothing was applied, nothing committed."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class UpdateLost(Exception):
    """A commit was asked for whose update is not in this trainer's memory: it has to be made again."""
