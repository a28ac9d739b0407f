"""The engine on a Ray cluster of several nodes, by its address alone: workers added, used there, and lost with a node.

The nodes are real: each has a raylet and workers of its own. That they share a machine shows nowhere but in the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from engine.bridge import scale_pool
from tests.engine.running import Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ONE_WORKER = {"rollout": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = f"/tmp/marlaas-cluster-{os.getpid()}"  # the path of a unix socket must be short
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "resources": ONE_WORKER, "temp_dir": folder}
    )  # fmt: skip
    ray.init(address=cluster.address, namespace="marlaas", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def engine(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Engine:
    return Engine(tmp_path_factory.mktemp("engine"), tiny_model, rollout_resources=ONE_WORKER)


def scale(engine: Engine, revision: int, workers: int) -> None:
    """As the portal asks for it: by the Celery command."""
    scale_pool.apply(args=["tiny", {"revision": revision, "rollout_workers": workers}], throw=True)


def workers(engine: Engine) -> list[dict[str, Any]]:
    return ray.get(engine.controller.health.remote())["pools"]["tiny"]["rollout_workers"]


def states(engine: Engine) -> list[str]:
    return [worker["state"] for worker in workers(engine)]


def drew(engine: Engine, job: str) -> set[str]:
    return {span["worker"] for span in engine.of(job, "span") if span["stage"] == "rollout"}


def same_weights(engine: Engine, one: str, other: str, version: int) -> None:
    ours, theirs = engine.weights(one, version), engine.weights(other, version)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=0)


def test_a_worker_on_a_second_node_is_used_and_its_loss_changes_no_result(cluster: Cluster, engine: Engine):
    undisturbed = engine.submit(30, seed=5, training__prompts_per_step=4)
    engine.wait(undisturbed)
    assert drew(engine, undisturbed) == {"rollout-0"}

    # A worker more than the cluster has room for waits for it; meanwhile the first one serves.
    crowd = engine.submit(100_000, seed=6)
    scale(engine, 1, 2)
    engine.wait_for_step(crowd, 2)
    assert states(engine) == ["serving", "starting"]

    second = cluster.add_node(num_cpus=1, resources=ONE_WORKER)
    engine.wait_for(lambda: states(engine) == ["serving", "serving"], "the second worker")
    first_node, second_node = [worker["node"] for worker in workers(engine)]
    assert (first_node, second_node) == (cluster.head_node.node_id, second.node_id)

    # Both draw, each adapter version from either; the node dies with what it was drawing.
    disturbed = engine.submit(30, seed=5, training__prompts_per_step=4)
    engine.wait_for(lambda: drew(engine, disturbed) == {"rollout-0", "rollout-1"}, "rollout on both nodes")
    assert "rollout-1" in drew(engine, crowd)
    cluster.remove_node(second, allow_graceful=False)
    engine.wait(disturbed)
    assert engine.status(disturbed)["status"] == "succeeded", engine.status(disturbed)["reason"]
    assert engine.steps(disturbed) == list(range(1, 31))
    same_weights(engine, disturbed, undisturbed, 30)
    assert states(engine) == ["serving", "starting"]

    # Its place is filled as soon as there is a node for it, and the adapters of running jobs are there when it serves.
    third = cluster.add_node(num_cpus=1, resources=ONE_WORKER)
    engine.wait_for(lambda: states(engine) == ["serving", "serving"], "the replacement")
    assert workers(engine)[1]["node"] == third.node_id
    again = engine.submit(30, seed=5, training__prompts_per_step=4)
    engine.wait(again)
    assert drew(engine, again) == {"rollout-0", "rollout-1"}
    same_weights(engine, again, undisturbed, 30)

    # An older wish changes nothing; a newer one takes the worker away while both jobs go on.
    scale(engine, 1, 5)
    assert len(workers(engine)) == 2
    scale(engine, 2, 1)
    assert states(engine) == ["serving"]
    engine.wait_for_step(crowd, len(engine.steps(crowd)) + 5)
    engine.control(crowd, cancelled=True)
    engine.wait(crowd)
    assert not [event for event in engine.of(crowd, "notice") if event["code"] == "reward_errors"]
    assert engine.steps(crowd) == list(range(1, len(engine.steps(crowd)) + 1))
