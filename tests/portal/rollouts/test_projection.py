"""Tables of rollouts, steps and evaluations: the same whatever the delivery, and when made again from the events."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from engine.events import Episode as EpisodePayload
from engine.events import EventBatch
from engine.events import RolloutGroup as GroupPayload
from portal.base_models.services import ensure_bundled_base_model
from portal.jobs import projection
from portal.jobs.services import ingest_events
from portal.progress.models import EvaluationRecord, StepRecord
from portal.rollouts.models import Episode, RolloutGroup
from tests.portal.factories import Owned, build_owned, evaluation, make_events, step


def group(number: int, *rewards: float, error: bool = False, prompt: str = "1+1?") -> GroupPayload:
    episodes = [
        EpisodePayload(completion=f"says {reward}", reward=reward, parts={"p": reward}, tokens=3, adapter_version=0)
        for reward in rewards
    ]
    if error:
        episodes[0] = episodes[0].model_copy(update={"error": True, "reason": "ValueError"})
    return GroupPayload(step=number, row=7, prompt=prompt, answer="2", episodes=episodes)


def story() -> list[Any]:
    return [
        group(2, 0.0, 1.0),
        step(2, tokens_sampled=100, accelerator_seconds=1.5),
        evaluation(0.5, 2),
        group(3, 0.25, 0.75, error=True),
        step(3, tokens_sampled=50, reward_errors=1),
        GroupPayload(step=4, row=0, prompt="empty", answer="", episodes=[]),
    ]


def tables(owned: Owned) -> list[Any]:
    of_job = {"job": owned.job}
    groups = RolloutGroup.objects.filter(**of_job).order_by("seq")
    names = ("seq", "step", "row", "prompt", "prompt_digest", "size", "reward_mean", "errors")
    episodes = Episode.objects.filter(group__job=owned.job).order_by("group__seq", "position")
    steps = StepRecord.objects.filter(**of_job).order_by("seq")
    return [
        list(groups.values_list(*names)),
        list(episodes.values_list("group__seq", "position", "completion", "reward", "error", "reason")),
        list(steps.values_list("seq", "step", "metrics", "total_tokens_sampled", "total_reward_errors")),
        list(EvaluationRecord.objects.filter(**of_job).values_list("seq", "adapter_version", "accuracy")),
    ]


def test_what_the_tables_hold(ours: Owned) -> None:
    ingest_events(batch=EventBatch(events=make_events(ours.job, *story(), first=4)))
    groups, episodes, steps, evaluations = tables(ours)
    assert [(row[0], row[1], row[5], row[6], row[7]) for row in groups] == [
        (4, 2, 2, 0.5, 0),
        (7, 3, 2, 0.5, 1),
        (9, 4, 0, None, 0),
    ]
    assert groups[0][4] == groups[1][4] != groups[2][4]
    assert episodes[2:] == [(7, 1, "says 0.25", 0.25, True, "ValueError"), (7, 2, "says 0.75", 0.75, False, "")]
    assert [(row[1], row[3], row[4]) for row in steps] == [(1, 0, 0), (2, 100, 0), (3, 150, 1)]
    assert evaluations == [(6, 2, 0.5)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 3, 0, 0, 5, 1, 2, 4, 4)])
def test_delivery_and_repeats_leave_no_trace(ours: Owned, order: tuple[int, ...]) -> None:
    events = make_events(ours.job, *story(), first=4)
    for index in order:
        ingest_events(batch=EventBatch(events=[events[index]]))
    groups, episodes, steps, _ = tables(ours)
    assert ([row[0] for row in groups], len(episodes), [row[3] for row in steps]) == ([4, 7, 9], 4, [0, 100, 150])


def test_long_backlogs_are_applied_in_chunks(ours: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "CHUNK", 2)
    ingest_events(batch=EventBatch(events=make_events(ours.job, *story(), first=4)))
    before = tables(ours)
    assert [row[3] for row in before[2]] == [0, 100, 150]
    projection.rebuild_tables(ours.job)
    ours.job.refresh_from_db()
    projection.rebuild_tables(ours.job)
    assert tables(ours) == before


def test_the_tables_are_made_again_from_the_events(ours: Owned, theirs: Owned, capsys: Any) -> None:
    ingest_events(batch=EventBatch(events=make_events(ours.job, *story(), first=4)))
    # Above a gap: nobody may see it yet.
    ingest_events(batch=EventBatch(events=make_events(ours.job, group(9, 1.0), first=20)))
    before = tables(ours)
    RolloutGroup.objects.filter(job=ours.job, seq=4).delete()
    StepRecord.objects.filter(job=ours.job).update(total_tokens_sampled=9)
    call_command("rebuild_projections", job=str(theirs.job.pk))
    assert tables(ours) != before
    call_command("rebuild_projections")
    assert tables(ours) == before
    assert "first job: made again" in capsys.readouterr().out


def test_the_command_names_what_it_does_not_know(ours: Owned) -> None:
    with pytest.raises(CommandError, match="'x' is no job id"):
        call_command("rebuild_projections", job="x")
    with pytest.raises(CommandError, match="There is no job"):
        call_command("rebuild_projections", job=str(ours.tenant.pk))


@pytest.mark.django_db(transaction=True)
def test_older_databases_are_filled_from_their_events(commands: Any) -> None:
    ensure_bundled_base_model()
    owned = build_owned("old")
    ingest_events(batch=EventBatch(events=make_events(owned.job, *story(), first=4)))
    before = tables(owned)
    try:
        MigrationExecutor(connection).migrate([("rollouts", None), ("progress", None)])
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes())
    assert tables(owned) == before
