"""What the API says of a job's course: metrics, evaluations, spend, rollouts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.rollouts.models import Episode, RolloutGroup

LARGEST = 2**31 - 1


class MetricsQuery(serializers.Serializer[Any]):
    after = serializers.IntegerField(default=0, min_value=0, max_value=LARGEST, help_text="Only steps above this one.")
    max_points = serializers.IntegerField(
        default=1000,
        min_value=1,
        max_value=10_000,
        help_text="Longer series are thinned evenly to about so many steps.",
    )


class StepOutput(serializers.Serializer[Any]):
    step = serializers.IntegerField()
    time = serializers.FloatField(help_text="Seconds since the epoch.")
    adapter_version = serializers.IntegerField()
    metrics = serializers.DictField(child=serializers.FloatField(), help_text="As in engine.events.StepCommitted.")


class EvaluationOutput(serializers.Serializer[Any]):
    step = serializers.IntegerField()
    time = serializers.FloatField()
    adapter_version = serializers.IntegerField(allow_null=True, help_text="Null for the base model.")
    rows = serializers.IntegerField()
    accuracy = serializers.FloatField()
    reward_mean = serializers.FloatField()
    best = serializers.BooleanField(help_text="No version evaluated before was better.")


class SpendOutput(serializers.Serializer[Any]):
    tokens_sampled = serializers.IntegerField()
    tokens_trained = serializers.IntegerField()
    accelerator_seconds = serializers.FloatField()
    reward_errors = serializers.IntegerField()


class TimeLeftOutput(serializers.Serializer[Any]):
    low = serializers.FloatField(help_text="Seconds, at the pace of the faster of the last steps.")
    high = serializers.FloatField(help_text="Seconds, at the pace of the slower of them.")


class MetricsOutput(serializers.Serializer[Any]):
    steps = StepOutput(many=True)
    evaluations = EvaluationOutput(many=True)
    best_version = serializers.IntegerField(allow_null=True)
    spend = SpendOutput(help_text="Of the committed steps.")
    time_left = TimeLeftOutput(
        allow_null=True, help_text="Null unless it runs, is not asked to pause or end, and two steps tell its pace."
    )


class RolloutsQuery(serializers.Serializer[Any]):
    step = serializers.IntegerField(default=None, min_value=1, max_value=LARGEST)
    min_reward = serializers.FloatField(default=None, help_text="A group matches if one of its episodes does.")
    max_reward = serializers.FloatField(default=None)
    failed = serializers.BooleanField(default=False, help_text="Only groups with a reward that failed.")
    text = serializers.CharField(
        default="", allow_blank=True, max_length=200, help_text="In the prompt, a completion or a reason."
    )
    prompt = serializers.RegexField(
        r"^[0-9a-f]{32}$", default="", allow_blank=True, help_text="A prompt_digest: this prompt alone."
    )
    before = serializers.IntegerField(
        default=None, min_value=1, max_value=LARGEST, help_text="Cursor: 'before' of the last answer."
    )
    limit = serializers.IntegerField(default=20, min_value=1, max_value=100)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        low, high = attrs["min_reward"], attrs["max_reward"]
        if low is not None and high is not None and low > high:
            raise serializers.ValidationError({"max_reward": "must not be below min_reward"})
        return attrs


class EpisodeOutput(serializers.ModelSerializer[Episode]):
    parts = serializers.DictField(child=serializers.FloatField())

    class Meta:
        model = Episode
        fields = [
            "position",
            "completion",
            "reward",
            "parts",
            "reason",
            "error",
            "advantage",
            "tokens",
            "truncated",
            "adapter_version",
        ]


class RolloutGroupOutput(serializers.ModelSerializer[RolloutGroup]):
    episodes = EpisodeOutput(many=True)

    class Meta:
        model = RolloutGroup
        fields = [
            "seq",
            "time",
            "step",
            "row",
            "prompt",
            "answer",
            "prompt_digest",
            "reward_mean",
            "errors",
            "episodes",
        ]


class RolloutsOutput(serializers.Serializer[Any]):
    groups = RolloutGroupOutput(many=True, help_text="Newest first.")
    before = serializers.IntegerField(allow_null=True, help_text="Send it as 'before' to go on; null at the end.")
    searched_to = serializers.IntegerField(
        allow_null=True,
        help_text="A search of text or rewards that did not fill its page came down to this step; go on with 'before'.",
    )
