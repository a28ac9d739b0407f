"""Updates and their commits as two calls, the second beside another job's update."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from engine.store import list_versions
from engine.training.session import Session
from engine.training.trainer import UpdateLost
from tests.engine.training.factory import make_batch, make_spec
from tests.engine.training.test_trainer import A, B, files_of, run_steps


def test_a_commit_runs_beside_another_jobs_update_and_changes_nothing(make_trainer, tmp_path):
    specs = [make_spec(A, seed=1), make_spec(B, seed=2)]
    alone = [run_steps(make_trainer(), spec, tmp_path / f"alone-{spec.job_id}", 3)[-1] for spec in specs]
    trainer = make_trainer()
    for spec in specs:
        trainer.open_job(spec, str(tmp_path / spec.job_id))
    commits = []
    with ThreadPoolExecutor(max_workers=2) as store:
        for step in range(1, 4):
            futures = []
            for spec in specs:
                trainer.update([make_batch(step, job_id=spec.job_id)])
                futures.append(store.submit(trainer.commit, spec.job_id, step))
            commits = [future.result().commit for future in futures]
    assert [files_of(commit) for commit in commits] == [files_of(commit) for commit in alone]


def test_an_update_that_was_not_committed_leaves_no_trace(make_trainer, tmp_path):
    spec = make_spec(A)
    expected = run_steps(make_trainer(), spec, tmp_path / "undisturbed", 1)[-1]
    trainer = make_trainer()
    trainer.open_job(spec, str(tmp_path / "job"))
    trainer.update([make_batch(1, seed=99)])
    with pytest.raises(UpdateLost):
        trainer.commit(A, 2)
    assert list_versions(str(tmp_path / "job")) == [0]
    trainer.update([make_batch(1)])
    assert files_of(trainer.commit(A, 1).commit) == files_of(expected)
    with pytest.raises(UpdateLost):
        trainer.commit(A, 1)


def test_closing_waits_for_a_commit_and_drops_what_none_was_asked_for(make_trainer, tmp_path, monkeypatch):
    trainer = make_trainer()
    for job in (A, B):
        trainer.open_job(make_spec(job), str(tmp_path / job))
        trainer.update([make_batch(1, job_id=job)])
    begun, go_on = threading.Event(), threading.Event()
    write = Session.commit

    def slow(*args, **kwargs):
        begun.set()
        assert go_on.wait(60)
        return write(*args, **kwargs)

    monkeypatch.setattr(Session, "commit", slow)
    with ThreadPoolExecutor(max_workers=2) as threads:
        commit = threads.submit(trainer.commit, A, 1)
        assert begun.wait(60)
        closing = threads.submit(trainer.close_job, A)
        assert wait([closing], timeout=0.3).not_done
        go_on.set()
        closing.result()
        assert commit.result().commit.version == 1 and list_versions(str(tmp_path / A)) == [0, 1]
    trainer.close_job(B)
    with pytest.raises(UpdateLost):
        trainer.commit(B, 1)
    assert list_versions(str(tmp_path / B)) == [0]
