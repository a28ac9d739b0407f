"""How a batch's time divides between rollout and environment: worked out by hand."""

import pytest

from engine.environments.timing import MOST_SPANS, StageTimes, merge_spans, stage_seconds
from engine.events import Span


def seconds(*groups: StageTimes) -> dict[str, float]:
    spans = [span for times in groups for span in times.spans()]
    return dict(stage_seconds(spans, [times.episode_seconds for times in groups]))


def test_a_single_turn_divides_where_drawing_ends():
    times = StageTimes()
    times.add("rollout", 0, 6, 10, episodes=2)
    times.add("environment", 6, 8)
    times.add("environment", 6, 8)
    assert seconds(times) == {"rollout": 6, "environment": 2}


def test_episodes_that_take_turns_share_the_time_by_what_they_waited_for():
    """Two episodes of 10 s, each 1 s of drawing and 4 s of environment twice, half a period apart: at no moment is the
    environment idle, and drawing overlaps it. 4 of 20 episode-seconds are drawing."""
    times = StageTimes()
    for offset in (0, 2.5):
        for turn in (0, 5):
            times.add("rollout", offset + turn, offset + turn + 1, 1)
            times.add("environment", offset + turn + 1, offset + turn + 5)
    assert seconds(times) == {"rollout": pytest.approx(12.5 * 0.2), "environment": pytest.approx(12.5 * 0.8)}


def test_groups_side_by_side_take_their_time_once():
    groups = []
    for _ in range(8):
        times = StageTimes()
        times.add("rollout", 0, 3, episodes=4)
        for _ in range(4):
            times.add("environment", 3, 4)
        groups.append(times)
    assert seconds(*groups) == {"rollout": 3, "environment": 1}


def test_time_in_which_nothing_happened_counts_for_nobody():
    first, later = StageTimes(), StageTimes()
    first.add("rollout", 0, 2)
    later.add("rollout", 10, 12)
    assert seconds(first, later) == {"rollout": 4, "environment": 0}


def test_spans_name_their_worker_and_those_of_different_workers_stay_apart():
    times = StageTimes()
    times.add("rollout", 0, 2, 3, worker="rollout-0")
    times.add("rollout", 1, 3, 4, worker="rollout-1")
    times.add("rollout", 2, 4, 5, worker="rollout-0")
    times.add("environment", 4, 5)
    assert [(span.stage, span.worker, span.start, span.end, span.tokens) for span in times.spans()] == [
        ("rollout", "rollout-0", 0, 4, 8), ("rollout", "rollout-1", 1, 3, 4), ("environment", "environment", 4, 5, 0),
    ]  # fmt: skip


def test_many_spans_are_joined_over_the_shortest_gaps():
    """40 spans of 1 s; the gaps are 9 s after every fourth one, else 0.5 s: ten blocks of four."""
    starts = [block * 14.5 + place * 1.5 for block in range(10) for place in range(4)]
    spans = [Span(stage="environment", worker="w", start=start, end=start + 1, tokens=1) for start in starts]
    merged = merge_spans(spans)
    assert len(merged) == MOST_SPANS
    assert sum(span.tokens for span in merged) == 40
    assert {block * 14.5 for block in range(10)} <= {span.start for span in merged}
