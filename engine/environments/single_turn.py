"""The model answers once; the episode ends."""

from __future__ import annotations

from engine.environments.protocol import Observation
from engine.spec import DatasetRow


class SingleTurnEpisode:
    """Over with the first reply."""

    async def reply(self, text: str) -> Observation:
        return Observation(messages=[], done=True)


class SingleTurnEnvironment:
    """See :class:`engine.spec.SingleTurn`."""

    def start(self, row: DatasetRow) -> SingleTurnEpisode:
        return SingleTurnEpisode()
