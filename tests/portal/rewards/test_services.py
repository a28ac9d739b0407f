"""Reward functions are validated where they are entered."""

import pytest

from portal.errors import InvalidInput, NotAllowed
from portal.rewards.models import RewardFunction
from portal.rewards.selectors import get_reward_function, list_reward_versions
from portal.rewards.services import create_reward_version
from portal.tenants.models import Role
from portal.tenants.services import add_member, create_user

MIX = {
    "grader": {
        "type": "mix",
        "parts": [
            {"name": "right", "weight": 3, "grader": {"type": "numeric"}},
            {"name": "short", "weight": 1, "grader": {"type": "brevity", "target": 10, "limit": 50}},
        ],
    }
}


def create(ours, spec, name="graded"):
    return create_reward_version(tenant=ours.tenant, user=ours.user, name=name, spec=spec)


def test_a_version_holds_the_whole_spec(ours):
    version = create(ours, MIX)
    assert version.number == 1
    assert version.spec["timeout_seconds"] == 5.0
    assert version.grader_type == "mix"
    assert version.to_spec().grader.parts[1].grader.limit == 50


def test_the_same_name_gets_the_next_version(ours):
    first, second = create(ours, MIX), create(ours, {"grader": {"type": "exact_match"}}, name=" graded ")
    assert (second.number, second.reward_function) == (2, first.reward_function)
    assert list(list_reward_versions(ours.tenant, first.reward_function_id)) == [second, first]
    assert get_reward_function(ours.tenant, first.reward_function_id).version_count == 2


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({}, "grader", "is required"),
        ({"grader": {}}, "grader", "needs a 'type'"),
        ({"grader": {"type": "magic"}}, "grader", "type 'magic' is unknown; choose one of 'exact_match'"),
        ({"grader": {"type": "regex", "pattern": "("}}, "grader.pattern", "not a valid regular expression"),
        ({"grader": {"type": "regex", "pattern": "a\x00"}}, "grader.pattern", "cannot be stored"),
        ({"grader": {"type": "regex"}}, "grader.pattern", "is required"),
        ({"grader": {"type": "numeric", "tolerence": 1}}, "grader.tolerence", "check the spelling"),
        ({"grader": {"type": "numeric", "tolerance": float("inf")}}, "grader.tolerance", "finite"),
        (
            {"grader": {"type": "json_schema", "json_schema": {"type": 3}}},
            "grader.json_schema",
            "not a valid JSON schema",
        ),
        ({"grader": {"type": "brevity", "target": 9, "limit": 3}}, "grader.limit", "limit must be greater than target"),
        ({"grader": {"type": "numeric"}, "timeout_seconds": 0}, "timeout_seconds", "greater than 0"),
        ({"grader": {"type": "mix", "parts": []}}, "grader.parts", "at least 1"),
        (
            {"grader": {"type": "mix", "parts": [{"name": "a", "weight": 0, "grader": {"type": "maths"}}]}},
            "grader.parts.0.weight",
            "greater than 0",
        ),
        (
            {
                "grader": {
                    "type": "mix",
                    "parts": [{"name": "a", "weight": 1, "grader": {"type": "regex", "pattern": "["}}],
                }
            },
            "grader.parts.0.grader.pattern",
            "not a valid regular expression",
        ),
    ],
)
def test_faults_name_the_field(ours, spec, field, says):
    with pytest.raises(InvalidInput) as caught:
        create(ours, spec)
    (error,) = caught.value.fields
    assert error.field == field
    assert says in error.message
    assert not RewardFunction.objects.filter(name="graded").exists()


def test_a_nameless_one(ours):
    with pytest.raises(InvalidInput) as caught:
        create(ours, MIX, name="  ")
    assert [error.field for error in caught.value.fields] == ["name"]


def test_viewers_cannot_create(ours):
    viewer = create_user(username="viewer", email="viewer@example.org", password="x")
    add_member(tenant=ours.tenant, user=viewer, role=Role.VIEWER)
    with pytest.raises(NotAllowed):
        create_reward_version(tenant=ours.tenant, user=viewer, name="n", spec=MIX)
