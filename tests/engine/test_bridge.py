"""How batches of events are paced."""

from __future__ import annotations

import pytest

from engine import bridge


@pytest.fixture
def pauses(monkeypatch):
    """Seconds waited, on a clock that only these waits move."""
    taken: list[float] = []
    monkeypatch.setattr(bridge.time, "monotonic", lambda: sum(taken))
    return taken


def test_a_portal_that_keeps_up_gets_a_message_at_every_pause(pauses, monkeypatch):
    monkeypatch.setattr(bridge, "messages_waiting", lambda queue: 0)
    bridge.gather(pauses.append)
    assert pauses == [bridge.BATCH_SECONDS]


def test_a_batch_goes_on_gathering_until_the_message_before_is_taken(pauses, monkeypatch):
    waiting = iter([2, 1, 0])
    monkeypatch.setattr(bridge, "messages_waiting", lambda queue: next(waiting))
    bridge.gather(pauses.append)
    assert len(pauses) == 3
    assert sum(pauses) == pytest.approx(1.4 * bridge.BATCH_SECONDS)


def test_a_portal_that_is_away_holds_events_back_for_a_while_only(pauses, monkeypatch):
    monkeypatch.setattr(bridge, "messages_waiting", lambda queue: 1)
    bridge.gather(pauses.append)
    assert bridge.LONGEST_PAUSE_SECONDS <= sum(pauses) < 1.1 * bridge.LONGEST_PAUSE_SECONDS
