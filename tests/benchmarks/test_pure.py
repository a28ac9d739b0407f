"""Statistics, unions of intervals, charts and the report."""

import doctest
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks import report, results, spans, stats
from tests.benchmarks.results import Results
from tests.benchmarks.slow_tool import LONGEST, SHORTEST, waiting_time


@pytest.mark.parametrize("module", [stats, spans, results])
def test_examples(module):
    assert doctest.testmod(module).failed == 0


def test_quantiles_lie_between_the_values_next_to_them():
    values = [10.0, 0.0, 5.0]
    assert [stats.quantile(values, share) for share in (0, 0.25, 0.5, 0.95, 1)] == [0, 2.5, 5, pytest.approx(9.5), 10]


def test_every_case_is_measured_once_a_repeat_and_none_is_always_first():
    order = list(stats.interleaved(["x", "y", "z"], 3))
    assert sorted(order) == sorted((repeat, case) for repeat in range(3) for case in "xyz")
    assert {case for _, case in order[::3]} == {"x", "y", "z"}


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple), max_size=12)


@settings(max_examples=50, deadline=None)
@given(intervals, st.integers(0, 20), st.integers(20, 40))
def test_what_is_covered_is_what_any_interval_covers(found, start, end):
    by_hand = sum(any(a <= second < b for a, b in found) for second in range(start, end))
    assert spans.covered(found, start, end) == by_hand


@settings(max_examples=50, deadline=None)
@given(intervals)
def test_a_timeline_adds_up_to_the_whole(found):
    parts = spans.timeline(found, 0, 40, 16)
    assert sum(parts) / 16 == pytest.approx(spans.share(found, 0, 40))


def test_a_tool_takes_the_time_it_says_and_always_the_same():
    times = [waiting_time(seed, 1, "text") for seed in range(2000)]
    assert times == [waiting_time(seed, 1, "text") for seed in range(2000)]
    assert min(times) == SHORTEST and max(times) == LONGEST
    assert stats.median(times) == pytest.approx(1.2, rel=0.1)


def test_a_report_shows_every_table_and_chart_and_escapes_text(tmp_path):
    made = Results("A", "Many <jobs>", "quick")
    made.table("Times", ["what", "s"], [["<one>", 1.25], ["none", None]], "a note")
    made.chart("lines", "Growth", series={"a": [[1, 2.0], [32, 8.0]]}, x="jobs", y="s", log_x=True)
    made.chart("gantt", "Stages", rows=[["0", [["train", 0.0, 1.0]]]], seconds=2.0)
    made.chart("areas", "Busy", series={"rollout": [0.0, 1.0, 0.5]}, seconds=3.0)
    made.chart("bars", "Memory", values={"web": 120.0}, unit="MiB")
    made.save(tmp_path)
    assert json.loads((tmp_path / "A.json").read_text())["machine"]["cores"]
    page = report.write(tmp_path, ["A", "B"]).read_text()
    assert page.count("<svg") == 4 and "&lt;one&gt;" in page and "<jobs>" not in page
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org", "")
