"""The adapter store: whole or absent at every instant, consecutive numbers, digests, pruning."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import store
from engine.store import StoreError, commit_version, last_commit, list_versions, load_commit, prune, read_manifest
from engine.types import Commit

JOB = "a" * 32


def contents(version: int) -> dict[str, bytes]:
    """The files of a version: different for each, large enough to be half-written."""
    pattern = random.Random(version).randbytes(1000)
    return {
        store.ADAPTER_FILE: pattern * 200,
        store.CONFIG_FILE: b'{"r": 4}',
        store.OPTIMIZER_FILE: pattern[::-1] * 400,
    }


def commit(job_dir: Path, version: int, metrics: dict[str, float] | None = None) -> Commit:
    def write_files(folder: Path) -> None:
        for name, data in contents(version).items():
            (folder / name).write_bytes(data)

    return commit_version(
        str(job_dir),
        job_id=JOB,
        step=version,
        cursor=version * 8,
        rng={"seed": 7},
        rank=4,
        metrics=metrics or {},
        write_files=write_files,
    )


def assert_whole(job_dir: Path, version: int) -> None:
    folder = job_dir / "versions" / str(version)
    for name, data in contents(version).items():
        assert (folder / name).read_bytes() == data


def test_a_commit_is_read_back_as_it_was_made(tmp_path):
    assert last_commit(str(tmp_path)) is None
    commit(tmp_path, 0)
    made = commit(tmp_path, 1, {"loss": 0.5})
    assert last_commit(str(tmp_path)) == made
    assert (made.version, made.step, made.cursor, made.rank, made.job_id) == (1, 1, 8, 4, JOB)
    assert made.path == str(tmp_path / "versions" / "1")
    assert made.size_bytes == 200_000
    manifest = read_manifest(str(tmp_path), 1)
    assert manifest.metrics == {"loss": 0.5}
    assert manifest.rng == {"seed": 7}
    assert manifest.files[store.OPTIMIZER_FILE].size_bytes == 400_000
    assert_whole(tmp_path, 1)


@pytest.mark.parametrize("version", [0, 1, 2, 4, -1])
def test_only_the_next_number_can_be_committed(tmp_path, version):
    for number in range(3):
        commit(tmp_path, number)
    with pytest.raises(StoreError, match=r"never used twice|the next one is 3"):
        commit(tmp_path, version)
    assert list_versions(str(tmp_path)) == [0, 1, 2]
    assert_whole(tmp_path, 2)


def test_a_number_is_not_reused_after_pruning(tmp_path):
    for number in range(6):
        commit(tmp_path, number)
    assert prune(str(tmp_path), keep={0}) == [1, 2, 3]
    with pytest.raises(StoreError, match="never used twice"):
        commit(tmp_path, 2)
    assert commit(tmp_path, 6).version == 6


def test_prune_keeps_what_is_asked_and_the_last_two_optimizers(tmp_path):
    for number in range(5):
        commit(tmp_path, number)
    assert prune(str(tmp_path), keep={1}) == [0, 2]
    assert list_versions(str(tmp_path)) == [1, 3, 4]
    has_optimizer = [n for n in (1, 3, 4) if (tmp_path / "versions" / str(n) / store.OPTIMIZER_FILE).exists()]
    assert has_optimizer == [3, 4]
    assert load_commit(str(tmp_path), 1).version == 1  # still whole as an adapter
    assert prune(str(tmp_path), keep={1}) == []
    with pytest.raises(StoreError, match="never committed, or it was pruned"):
        load_commit(str(tmp_path), 2)


@pytest.mark.parametrize("name", [store.ADAPTER_FILE, store.CONFIG_FILE, store.OPTIMIZER_FILE])
def test_a_damaged_version_is_an_error_and_never_skipped(tmp_path, name):
    commit(tmp_path, 0)
    commit(tmp_path, 1)
    path = tmp_path / "versions" / "1" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"{name} is damaged"):
        last_commit(str(tmp_path))


def test_a_failing_writer_commits_nothing(tmp_path):
    commit(tmp_path, 0)

    def write_files(folder: Path) -> None:
        (folder / store.ADAPTER_FILE).write_bytes(b"half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        commit_version(str(tmp_path), job_id=JOB, step=1, cursor=0, rng={}, rank=4, metrics={}, write_files=write_files)
    last = last_commit(str(tmp_path))
    assert last is not None and last.version == 0
    assert [entry.name for entry in (tmp_path / "versions").iterdir()] == ["0"]
    assert commit(tmp_path, 1).version == 1


def test_metrics_must_be_finite(tmp_path):
    with pytest.raises(ValueError, match="finite"):
        commit(tmp_path, 0, {"loss": float("nan")})
    assert last_commit(str(tmp_path)) is None


def test_leftovers_are_not_removed_while_a_commit_is_under_way(tmp_path):
    commit(tmp_path, 0)
    seen = []

    def write_files(folder: Path) -> None:
        for name, data in contents(1).items():
            (folder / name).write_bytes(data)
        code = f"from engine.store import last_commit; print(last_commit({str(tmp_path)!r}).version)"
        seen.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    commit_version(str(tmp_path), job_id=JOB, step=1, cursor=0, rng={}, rank=4, metrics={}, write_files=write_files)
    assert seen == ["0\n"]
    assert_whole(tmp_path, 1)


def _die_at(call: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that kills itself just before its ``call``-th change of the disk; True if it died."""
    child = os.fork()
    if child == 0:
        count = 0

        def deadly(function):
            def wrapper(*args, **kwargs):
                nonlocal count
                count += 1
                if count == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return wrapper

        for name in ("fsync", "rename", "mkdir", "unlink", "rmdir", "open"):
            setattr(os, name, deadly(getattr(os, name)))
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_a_crash_at_any_instant_of_a_commit_leaves_it_whole_or_absent(tmp_path):
    call, outcomes = 0, set()
    died = True
    while died:
        call += 1
        job_dir = tmp_path / str(call)
        commit(job_dir, 0)
        died = _die_at(call, lambda job_dir=job_dir: commit(job_dir, 1))
        last = last_commit(str(job_dir))
        assert last is not None
        assert_whole(job_dir, last.version)
        assert [entry.name for entry in (job_dir / "versions").iterdir() if entry.name.startswith(".")] == []
        outcomes.add((died, last.version))
        if last.version == 0:
            commit(job_dir, 1)
            assert_whole(job_dir, 1)
    assert outcomes == {(True, 0), (True, 1), (False, 1)}


def test_a_crash_at_any_instant_of_pruning_loses_nothing_that_is_kept(tmp_path):
    call = 0
    died = True
    while died:
        call += 1
        job_dir = tmp_path / str(call)
        for number in range(5):
            commit(job_dir, number)
        died = _die_at(call, lambda job_dir=job_dir: prune(str(job_dir), keep={1}))
        for number in list_versions(str(job_dir)):
            assert load_commit(str(job_dir), number).version == number
        prune(str(job_dir), keep={1})
        assert list_versions(str(job_dir)) == [1, 3, 4]
        assert commit(job_dir, 5).version == 5
    assert call > 5


_COMMIT_FOREVER = """
import sys
from pathlib import Path
from engine.store import last_commit, prune
from tests.engine.test_store import commit
job_dir = Path(sys.argv[1])
last = last_commit(str(job_dir))
version = last.version + 1 if last else 0
print("ready", flush=True)
while True:
    commit(job_dir, version)
    prune(str(job_dir), keep={0})
    version += 1
"""


def test_killed_at_random_instants_the_last_commit_is_whole(tmp_path):
    rng = random.Random(0)
    reached = []
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", _COMMIT_FOREVER, str(tmp_path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.005, 0.1))
            child.send_signal(signal.SIGKILL)
        last = last_commit(str(tmp_path))
        if last is not None:
            assert_whole(tmp_path, last.version)
            reached.append(last.version)
    assert reached == sorted(reached)
    assert reached and reached[-1] > 3
