"""Which version a job ends with, and which ones retention keeps."""

from pathlib import Path

import pytest

from engine.best_version import EvaluationHistory
from engine.ledger import Ledger
from engine.result import choose_result, versions_to_keep
from engine.spec import EvaluationSettings, JobSpec, StartFrom, TrainingSettings
from engine.store import commit_version, last_commit
from tests.engine.test_ledger import JOB, OTHER, make_spec, queued


def spec(result: str = "best") -> JobSpec:
    return make_spec().model_copy(update={"evaluation": EvaluationSettings(result=result, every_steps=1)})


@pytest.fixture
def job_dir(tmp_path: Path) -> str:
    for step in range(4):
        commit_version(
            str(tmp_path), job_id=JOB, step=step, cursor=step, rng={}, rank=1, metrics={},
            write_files=lambda folder, step=step: [
                (folder / name).write_text(f"{name} {step}")
                for name in ("adapter_model.safetensors", "adapter_config.json")
            ],
        )  # fmt: skip
    return str(tmp_path)


def evaluated(*records: tuple[int, float]) -> EvaluationHistory:
    """(step, accuracy); step 0 is the base."""
    history = EvaluationHistory(EvaluationSettings())
    for step, accuracy in records:
        history.record(step or None, step, accuracy, accuracy)
    return history


def choose(job_dir: str, evaluations: EvaluationHistory, result: str = "best"):
    last = last_commit(job_dir)
    assert last is not None
    return choose_result(spec(result), evaluations, last, job_dir)


def test_without_evaluations_the_last_version_is_the_result(job_dir):
    result = choose(job_dir, evaluated((0, 0.9)))
    assert (result.commit.version, result.why, result.notices) == (3, "", [])
    assert result.kept == "The adapter of step 3 is kept and can be downloaded."


def test_a_better_earlier_version_is_the_result_and_it_is_said_why(job_dir):
    result = choose(job_dir, evaluated((0, 0.1), (1, 0.2), (2, 0.8), (3, 0.5)))
    assert result.commit.version == 2
    assert result.commit.path.endswith("/2")
    assert result.why == (
        " Step 2 did best on the held-out rows (accuracy 80.0%, mean reward 0.800; the last step, 3: accuracy 50.0%, "
        "mean reward 0.500) and is the job's result."
    )
    assert "step 2, the best one, is the job's result" in result.kept and "step 3, the last one" in result.kept


def test_a_last_step_that_was_not_evaluated_is_said_to_be_so(job_dir):
    result = choose(job_dir, evaluated((0, 0.1), (2, 0.8)))
    assert result.commit.version == 2
    assert "the last step, 3, was not evaluated" in result.why


def test_the_last_version_is_the_result_where_it_is_best_or_wanted(job_dir):
    assert choose(job_dir, evaluated((1, 0.2), (3, 0.8))).why == ""
    wanted = choose(job_dir, evaluated((1, 0.9), (3, 0.8)), result="last")
    assert (wanted.commit.version, wanted.why) == (3, "")


def test_a_base_that_is_better_than_any_version_is_said_to_be(job_dir):
    (notice,) = choose(job_dir, evaluated((0, 0.9), (3, 0.8))).notices
    assert notice.code == "base_is_better" and "accuracy 90.0%" in notice.message and "step 3" in notice.message
    assert choose(job_dir, evaluated((0, 0.8), (3, 0.8))).notices == []


def test_a_best_version_that_cannot_be_read_gives_way_to_the_last(job_dir):
    (Path(job_dir) / "versions" / "2" / "adapter_model.safetensors").write_text("damaged")
    assert choose(job_dir, evaluated((2, 0.8), (3, 0.1))).commit.version == 3


def test_retention_keeps_every_tenth_what_staleness_needs_the_best_and_what_others_start_from():
    stale = spec().model_copy(update={"training": TrainingSettings(max_staleness=4)})
    assert versions_to_keep(stale, 25, needed={7}, started_from={13}) == {0, 7, 10, 13, 20, 21, 22, 23, 24}
    assert versions_to_keep(spec(), 25, needed=(), started_from=()) == {0, 10, 20, 23}


def test_a_version_is_started_from_while_the_other_job_has_not_ended(tmp_path):
    from engine.events import StatusChanged

    ledger = Ledger(tmp_path / "ledger.sqlite3")
    other = make_spec(OTHER).model_copy(update={"start_from": StartFrom(job_id=JOB, version=13)})
    ledger.add_job(JOB, make_spec(JOB).model_dump(mode="json"), queued())
    ledger.add_job(OTHER, other.model_dump(mode="json"), queued())
    assert ledger.versions_started_from(JOB) == {13}
    assert ledger.versions_started_from(OTHER) == set()
    ledger.report(OTHER, StatusChanged(status="paused", reason="on request"))
    assert ledger.versions_started_from(JOB) == {13}
    ledger.report(OTHER, StatusChanged(status="succeeded", reason="done"))
    assert ledger.versions_started_from(JOB) == set()
