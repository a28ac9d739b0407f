"""What the API takes and gives. Rules live in the services; these only name and shape fields."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.adapters.models import AdapterVersion
from portal.base_models.models import BaseModel
from portal.datasets.models import Dataset, DatasetVersion
from portal.jobs.models import Job
from portal.jobs.selectors import summarize_control
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
        fields = ["id", "number", "sha256", "rows", "train_rows", "held_out_rows", "size_bytes", "origin", "created_at"]
        extra_kwargs = {"origin": {"help_text": "File, format, mapping, split, repeats found, rows left out."}}


class DatasetOutput(serializers.ModelSerializer[Dataset]):
    versions = DatasetVersionOutput(many=True, help_text="Newest first.")

    class Meta:
        model = Dataset
        fields = ["id", "name", "created_at", "archived_at", "versions"]


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
    dataset_version = serializers.UUIDField(
        default=None, allow_null=True, help_text="Left out only where the environment makes the rows: reasoning_gym."
    )
    reward_version = serializers.UUIDField()
    settings = serializers.DictField(
        default=dict,
        help_text="Any of environment, sampling, training, lora, evaluation, limits and seed of engine.spec.JobSpec.",
    )
    start_from = serializers.UUIDField(
        default=None,
        allow_null=True,
        help_text="Id of an adapter version to continue from; its base model and LoRA settings are the job's.",
    )


class EstimateInput(JobInput):
    name = serializers.CharField(max_length=200, default="", allow_blank=True)


class CheckOutput(serializers.Serializer[Any]):
    level = serializers.ChoiceField(["error", "warning"], help_text="With an error the job should not start.")
    field = serializers.CharField(allow_blank=True)
    message = serializers.CharField()
    hint = serializers.CharField(allow_blank=True, help_text="What to do.")


class TokensOutput(serializers.Serializer[Any]):
    prompt = serializers.IntegerField(allow_null=True, help_text="Of all prompts, each counted once an episode.")
    sampled = serializers.IntegerField(help_text="Expected where completion_mean is known, else the most.")
    sampled_at_most = serializers.IntegerField()
    trained = serializers.IntegerField()
    trained_at_most = serializers.IntegerField()
    completion_mean = serializers.FloatField(allow_null=True, help_text="Of your last job on the same dataset.")


class QuotaOutput(serializers.Serializer[Any]):
    name = serializers.CharField()
    limit = serializers.FloatField()
    used = serializers.FloatField()
    left = serializers.FloatField(help_text="After this job; negative where it does not fit.")


class EstimateOutput(serializers.Serializer[Any]):
    can_start = serializers.BooleanField(help_text="No check is an error.")
    checks = CheckOutput(many=True, help_text="Errors first.")
    episodes = serializers.IntegerField()
    passes = serializers.FloatField(allow_null=True, help_text="How often each training row is drawn.")
    tokens = TokensOutput()
    seconds = serializers.FloatField(allow_null=True, help_text="Once it runs. Null where nothing is measured yet.")
    accelerator_seconds = serializers.FloatField(allow_null=True)
    wait_seconds = serializers.FloatField(allow_null=True, help_text="Before it runs, as earlier jobs waited.")
    quotas = QuotaOutput(many=True)
    basis = serializers.ListField(child=serializers.CharField(), help_text="Where each figure comes from.")


class JobChange(serializers.Serializer[Any]):
    priority = serializers.IntegerField(
        required=False, help_text="-10 to 10; among the tenant's own jobs the highest goes first."
    )
    steps = serializers.IntegerField(required=False, help_text="In all; not below those done.")


class ControlOutput(serializers.Serializer[Any]):
    revision = serializers.IntegerField(help_text="Counts the changes.")
    applied_revision = serializers.IntegerField(help_text="The engine goes by this one.")
    paused = serializers.BooleanField()
    cancelled = serializers.BooleanField()
    priority = serializers.IntegerField()
    steps = serializers.IntegerField()


class JobOutput(serializers.ModelSerializer[Job]):
    transition = serializers.SerializerMethodField(
        help_text="What was asked for and the engine has not reported yet: cancelling, pausing, resuming or empty."
    )
    reason = serializers.CharField(source="state_reason", help_text="Why it is in its state.")
    next = serializers.CharField(source="state_next", help_text="What happens next.")
    control = serializers.SerializerMethodField(help_text="What was asked for.")
    metrics = serializers.DictField(child=serializers.FloatField(), help_text="Of the last step.")

    class Meta:
        model = Job
        fields = [
            "id",
            "name",
            "status",
            "transition",
            "reason",
            "next",
            "step",
            "steps",
            "priority",
            "control",
            "metrics",
            "base_accuracy",
            "accuracy",
            "base_model",
            "dataset_version",
            "reward_version",
            "start_from",
            "spec",
            "last_seq",
            "created_at",
            "started_at",
            "finished_at",
        ]

    def get_transition(self, job: Job) -> str:
        return job.transition.name if job.transition else ""

    @extend_schema_field(ControlOutput)
    def get_control(self, job: Job) -> dict[str, Any]:
        return summarize_control(job)


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
