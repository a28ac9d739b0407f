"""Which version is best, and when to stop: worked out by hand."""

import itertools
import json

import pytest
from pydantic import ValidationError

from engine.best_version import EvaluationHistory
from engine.spec import EvaluationSettings, JobSpec
from tests.engine.test_spec import changed


def history(patience: int = 0, min_delta: float = 0.0) -> EvaluationHistory:
    return EvaluationHistory(EvaluationSettings(every_steps=1, patience=patience, min_delta=min_delta))


def fed(evaluations, **settings) -> EvaluationHistory:
    made = history(**settings)
    for step, accuracy, *reward in evaluations:
        made.record(step or None, step, accuracy, *(reward or [accuracy]))
    return made


def test_without_an_adapter_evaluated_there_is_no_best():
    assert history().best is None
    assert fed([(0, 0.9)]).best is None


@pytest.mark.parametrize(
    ("evaluations", "best"),
    [
        ([(5, 0.2, 0.9), (10, 0.3, 0.1)], 10),  # accuracy first
        ([(5, 0.3, 0.5), (10, 0.3, 0.4)], 5),  # then reward
        ([(5, 0.3, 0.5), (10, 0.3, 0.5)], 10),  # then the later
        ([(0, 0.9, 0.9), (5, 0.3, 0.5)], 5),  # the base is no version
    ],
)
def test_the_best_version_whatever_the_order(evaluations, best):
    for order in itertools.permutations(evaluations):
        found = fed(order).best
        assert found is not None and (found.version, found.step) == (best, best)


def test_record_says_whether_the_version_is_the_best():
    made = history()
    assert not made.record(None, 0, 0.5, 0.5)
    assert made.record(5, 5, 0.4, 0.4)
    assert not made.record(10, 10, 0.3, 0.3)
    assert made.record(15, 15, 0.4, 0.4)
    assert not made.record(15, 15, 0.4, 0.4)


def test_patience_0_never_stops():
    assert fed([(step, 0.5) for step in range(50)]).should_stop == ""


def test_stops_after_so_many_evaluations_without_improvement():
    made = fed([(0, 0.2), (5, 0.5), (10, 0.5), (15, 0.4)], patience=3)
    assert made.should_stop == ""
    made.record(20, 20, 0.45, 0.45)
    assert made.should_stop == (
        "The last 3 evaluations did not improve on step 5 (held-out accuracy 50.0%, mean reward 0.500)"
    )


def test_an_improvement_begins_the_wait_anew():
    assert fed([(0, 0.2), (5, 0.1), (10, 0.3), (15, 0.2)], patience=2).should_stop == ""
    assert "on the base" in fed([(0, 0.3), (5, 0.1), (10, 0.3)], patience=2).should_stop


def test_small_steps_add_up_to_an_improvement():
    """0.50 -> 0.52 -> 0.54 is less than 0.05 each time; 0.56 is more than 0.05 above the mark."""
    slow = [(0, 0.50), (5, 0.52), (10, 0.54), (15, 0.56), (20, 0.58)]
    assert fed(slow, patience=3, min_delta=0.05).should_stop == ""
    assert "by at least 0.05 on the base" in fed(slow[:3], patience=2, min_delta=0.05).should_stop


def test_exactly_min_delta_is_an_improvement():
    assert fed([(0, 0.2), (5, 0.3)], patience=1, min_delta=0.1).should_stop == ""


def test_where_accuracy_stands_still_the_reward_counts():
    """A reward that is never quite 1 leaves accuracy at 0; the run is learning all the same."""
    assert fed([(0, 0.0, 0.1), (5, 0.0, 0.2), (10, 0.0, 0.3)], patience=1).should_stop == ""
    assert fed([(0, 0.5, 0.1), (5, 0.4, 0.9)], patience=1).should_stop


def test_a_late_evaluation_sets_the_mark_but_is_not_waited_for():
    made = fed([(5, 0.3), (10, 0.2), (0, 0.25)], patience=2)
    assert made.should_stop == ""
    made.record(15, 15, 0.1, 0.1)
    assert "on step 5" in made.should_stop


def test_recording_again_changes_nothing():
    once, twice = fed([(0, 0.3), (5, 0.2)], patience=2), fed([(0, 0.3), (5, 0.2), (5, 0.2)], patience=2)
    assert once.state() == twice.state()


@pytest.mark.parametrize("cut", range(6))
def test_restored_it_goes_on_as_if_never_away(cut):
    evaluations = [(0, 0.2), (5, 0.5), (10, 0.5), (15, 0.4), (20, 0.45)]
    whole, restored = fed(evaluations, patience=3), history(patience=3)
    restored.restore(json.loads(json.dumps(fed(evaluations[:cut], patience=3).state())))
    for step, accuracy in evaluations[cut:]:
        restored.record(step or None, step, accuracy, accuracy)
    assert restored.state() == whole.state()
    assert restored.should_stop == whole.should_stop != ""


def test_its_state_does_not_grow():
    made = history(patience=10)
    made.record(None, 0, 0.5, 0.5)
    made.record(1, 1, 0.5, 0.5)
    size = len(json.dumps(made.state()))
    for step in range(2, 500):
        made.record(step, step, 0.5, 0.5)
    assert len(json.dumps(made.state())) < size + 20


def test_patience_without_evaluations_is_refused():
    with pytest.raises(ValidationError, match="patience needs evaluations during training: set every_steps"):
        EvaluationSettings(patience=3)
    with pytest.raises(ValidationError, match=r"evaluation\.patience needs held-out rows"):
        JobSpec.model_validate(changed(evaluation__patience=3, evaluation__every_steps=5, dataset__held_out_rows=0))
