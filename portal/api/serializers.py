"""What the API takes and gives. Rules live in the services; these only name and shape fields."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.adapters.models import AdapterVersion
from portal.base_models.models import BaseModel
from portal.datasets.models import Dataset, DatasetVersion
from portal.jobs.models import Job
from portal.rewards.models import RewardFunction, RewardVersion


class FieldErrorOutput(serializers.Serializer[Any]):
    field = serializers.CharField()
    message = serializers.CharField()


class ErrorDetailOutput(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    # Declared fields are taken off the class, so DRF's own attribute of this name stays.
    fields = FieldErrorOutput(many=True)  # type: ignore[assignment]
    hint = serializers.CharField(allow_blank=True)


class ErrorOutput(serializers.Serializer[Any]):
    error = ErrorDetailOutput()


class BaseModelOutput(serializers.ModelSerializer[BaseModel]):
    class Meta:
        model = BaseModel
        fields = ["id", "description", "context_length", "max_lora_rank", "dtype"]


class DatasetVersionOutput(serializers.ModelSerializer[DatasetVersion]):
    class Meta:
        model = DatasetVersion
        fields = ["id", "number", "sha256", "rows", "train_rows", "held_out_rows", "size_bytes", "created_at"]


class DatasetOutput(serializers.ModelSerializer[Dataset]):
    versions = DatasetVersionOutput(many=True, help_text="Newest first.")

    class Meta:
        model = Dataset
        fields = ["id", "name", "created_at", "versions"]


class DatasetInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100, help_text="A name that exists gets a new version.")
    held_out_fraction = serializers.FloatField(default=0.1, min_value=0, help_text="Of the rows without a split.")
    seed = serializers.IntegerField(default=0, help_text="Of the split.")


class DatasetUpload(DatasetInput):
    file = serializers.FileField(help_text="JSON lines.", allow_empty_file=True)


class RewardVersionOutput(serializers.ModelSerializer[RewardVersion]):
    class Meta:
        model = RewardVersion
        fields = ["id", "number", "spec", "created_at"]


class RewardFunctionOutput(serializers.ModelSerializer[RewardFunction]):
    versions = RewardVersionOutput(many=True, help_text="Newest first.")

    class Meta:
        model = RewardFunction
        fields = ["id", "name", "created_at", "versions"]


class RewardFunctionInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100, help_text="A name that exists gets a new version.")
    spec = serializers.DictField(help_text="engine.spec.RewardSpec: {'grader': {'type': ...}, 'timeout_seconds': ...}.")


class JobInput(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=200)
    base_model = serializers.CharField(max_length=64)
    dataset_version = serializers.UUIDField()
    reward_version = serializers.UUIDField()
    settings = serializers.DictField(
        default=dict,
        help_text="Any of environment, sampling, training, lora, evaluation, limits and seed of engine.spec.JobSpec.",
    )


class JobOutput(serializers.ModelSerializer[Job]):
    cancelling = serializers.BooleanField(source="is_cancelling")
    metrics = serializers.DictField(child=serializers.FloatField(), help_text="Of the last step.")

    class Meta:
        model = Job
        fields = [
            "id",
            "name",
            "status",
            "cancelling",
            "reason",
            "next",
            "step",
            "steps",
            "metrics",
            "base_accuracy",
            "accuracy",
            "base_model",
            "dataset_version",
            "reward_version",
            "spec",
            "last_seq",
            "created_at",
            "started_at",
            "finished_at",
        ]


class EventOutput(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    type = serializers.CharField()
    time = serializers.FloatField(help_text="Seconds since the epoch.")
    payload = serializers.DictField(help_text="One of the payloads of engine.events.")


class EventsQuery(serializers.Serializer[Any]):
    after = serializers.IntegerField(default=0, min_value=0, max_value=2**31 - 1, help_text="The seq you have.")
    limit = serializers.IntegerField(default=200, min_value=1, max_value=1000)
    type = serializers.CharField(default="", allow_blank=True, help_text="Only these types, separated by commas.")


class EventsOutput(serializers.Serializer[Any]):
    events = EventOutput(many=True)
    last_seq = serializers.IntegerField(help_text="Send it as 'after' to go on.")
    finished = serializers.BooleanField(help_text="The job has ended and nothing follows last_seq.")


class AdapterOutput(serializers.ModelSerializer[AdapterVersion]):
    class Meta:
        model = AdapterVersion
        fields = ["id", "version", "name", "sha256", "size_bytes", "rank", "step", "final", "removed", "created_at"]


class LinkOutput(serializers.Serializer[Any]):
    url = serializers.URLField(help_text="Works without a token or cookie.")
    expires_at = serializers.DateTimeField()
