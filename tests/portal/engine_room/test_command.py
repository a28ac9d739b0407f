"""``manage.py engine``."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from portal.base_models.services import BUNDLED_ID
from portal.engine_room.models import DrainWish, EngineState, PoolWish


def engine(*arguments):
    out = io.StringIO()
    call_command("engine", *arguments, stdout=out)
    return out.getvalue()


def test_status(reported):
    assert json.loads(engine("status"))["pools"][0]["base_model"] == BUNDLED_ID
    EngineState.objects.update(heard_at="2026-01-01T00:00:00Z")
    with pytest.raises(CommandError, match="not been heard from since 2026-01-01"):
        engine("status")


def test_before_the_first_report(db):
    with pytest.raises(CommandError, match="never"):
        engine("status")


def test_acts(operator_user, looker, ours):
    engine("drain", "--reason", "new GPUs", "--user", "operator")
    assert DrainWish.objects.get().draining
    engine("resume", "--user", "operator")
    assert not DrainWish.objects.get().draining
    engine("scale", BUNDLED_ID, "3", "--user", "operator")
    assert PoolWish.objects.get().rollout_workers == 3
    for arguments, words in (
        (("scale", BUNDLED_ID, "0", "--user", "operator"), "between 1 and 256"),
        (("scale", "nothing", "2", "--user", "operator"), "No such base model"),
        (("drain", "--reason", "x", "--user", "looker"), "not change it"),
        (("resume", "--user", "nobody"), "no user"),
    ):
        with pytest.raises(CommandError, match=words):
            engine(*arguments)
