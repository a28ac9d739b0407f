"""A trainer killed at random instants loses, repeats and half-applies no step."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

from engine.store import last_commit
from engine.training.trainer import Trainer
from tests.engine.training.factory import make_batch, make_spec

STEPS = 24


def train(model_dir: str, job_dir: str, ready: object = None) -> None:
    """Train the job from its last commit to its end."""
    trainer = Trainer(model_dir, dtype="float32", device="cpu", threads=1)
    spec = make_spec()
    commit = trainer.open_job(spec, job_dir)
    if ready is not None:
        ready.set()  # type: ignore[attr-defined]
    for step in range(commit.step + 1, STEPS + 1):
        trainer.train_step(make_batch(step))


def test_killed_again_and_again_it_ends_with_the_same_weights(tiny_model: Path, tmp_path: Path):
    # Children of a server that has imported torch, but computed nothing, start fast and are safe to fork.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.training.session", "engine.training.update", __name__])
    rng = random.Random(0)
    kills, seen, patience = 0, [0], 0.03
    while seen[-1] < STEPS:
        ready = context.Event()
        child = context.Process(target=train, args=(str(tiny_model), str(tmp_path / "killed"), ready))
        child.start()
        assert ready.wait(120)
        child.join(rng.uniform(0.0, patience))
        child.kill()
        child.join()
        kills += child.exitcode != 0
        commit = last_commit(str(tmp_path / "killed"))
        assert commit is not None
        patience = 0.03 if commit.step > seen[-1] else 2 * patience  # on a busy machine a step takes longer
        seen.append(commit.step)
    assert seen == sorted(seen)
    assert kills >= 2

    # In a process like the others: what this one has imported may change how sums are rounded.
    child = context.Process(target=train, args=(str(tiny_model), str(tmp_path / "undisturbed")))
    child.start()
    child.join()
    killed, undisturbed = (last_commit(str(tmp_path / name)) for name in ("killed", "undisturbed"))
    assert killed is not None and undisturbed is not None
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (Path(killed.path) / name).read_bytes() == (Path(undisturbed.path) / name).read_bytes()
